"""One thin module a subcommand; each imports its service when it runs."""
