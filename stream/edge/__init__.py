"""The world around the stream: Kafka, MQTT, webhooks, HTTP. The only part that does I/O."""
