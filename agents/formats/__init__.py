"""What devices and tools print, as values: pure functions of text and bytes."""
