"""Reading → minute row → window → risk → decision → delivery.

The modules here are the pure core: values in, values out, time as an argument. ``edge/`` holds
the world: MQTT, Kafka, HTTP, metrics.
"""
