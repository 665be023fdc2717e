"""The sources: one module each, named in ``agents.table``."""
