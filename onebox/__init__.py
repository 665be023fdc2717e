"""Everything on one machine, each part as a real process."""
