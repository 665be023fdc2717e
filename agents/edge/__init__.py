"""Where the agent meets the world: MQTT, signals, the clock on the wall."""
