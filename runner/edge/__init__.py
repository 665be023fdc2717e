"""The runner's border with the world: HTTP, SQLite, processes, clocks."""
