"""Converters of public data sets into fleet data sets (contracts section 4)."""
