"""What crosses a border: names, units, plausible ranges, topics, message shapes.

Standard library and orjson only, so that a rig's agent can import it cheaply.
"""
