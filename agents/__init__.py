"""A rig's agent: sample → reading → MQTT message.

Importing this package is cheap; a source's driver is imported when that source is opened.
"""
