"""The bridge's own metrics (contracts section 8), in a registry of their own."""

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from contract.errors import ConfigError
from stream.edge.bridge_packer import Outgoing, Tally


def package_version() -> str:
    """Version of the installed distribution, ``0`` when it runs from a bare source tree."""
    try:
        return version("rigcanary")
    except PackageNotFoundError:
        return "0"


class BridgeMetrics:
    """Counters that the bridge keeps; ``registry`` is what ``/metrics`` shows."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.messages = Counter(
            "rigcanary_bridge_messages", "MQTT messages handled", ["kind"], registry=r
        )
        self.dead_letters = Counter(
            "rigcanary_bridge_dead_letters",
            "Messages filed as dead letters",
            ["reason"],
            registry=r,
        )
        self.repaired = Counter(
            "rigcanary_bridge_repaired_messages",
            "Messages whose NaN or Infinity, which is no JSON, became null",
            registry=r,
        )
        self.records = Counter(
            "rigcanary_bridge_records", "Kafka records delivered", ["topic"], registry=r
        )
        self.record_bytes = Counter(
            "rigcanary_bridge_record_bytes",
            "Bytes of the Kafka records delivered",
            ["topic"],
            registry=r,
        )
        self.retries = Counter(
            "rigcanary_bridge_kafka_retries",
            "Deliveries to Kafka that were tried again",
            registry=r,
        )
        self.connections = Counter(
            "rigcanary_bridge_mqtt_connections", "MQTT connections made", registry=r
        )
        self.connected = Gauge(
            "rigcanary_bridge_connected", "1 while connected", ["to"], registry=r
        )
        self.unacked = Gauge(
            "rigcanary_bridge_unacked_messages", "MQTT messages not yet acknowledged", registry=r
        )
        self.produce_seconds = Histogram(
            "rigcanary_bridge_produce_seconds",
            "From the first try to Kafka's answer, one batch",
            registry=r,
            buckets=(
                0.001,
                0.0025,
                0.005,
                0.01,
                0.025,
                0.05,
                0.1,
                0.25,
                0.5,
                1,
                2.5,
                5,
                10,
                30,
                60,
            ),
        )
        build = Gauge(
            "rigcanary_build_info",
            "1, with the version as label",
            ["version", "python", "process"],
            registry=r,
        )
        build.labels(package_version(), platform.python_version(), "bridge").set(1)

    def count(self, tally: Tally) -> None:
        """Add what one batch held."""
        for kind, n in tally.kinds.items():
            self.messages.labels(kind).inc(n)
        for reason, n in tally.dead.items():
            self.dead_letters.labels(reason).inc(n)
        self.repaired.inc(tally.repaired)

    def delivered(self, record: Outgoing) -> None:
        """Count one record that Kafka has."""
        self.records.labels(record.topic).inc()
        self.record_bytes.labels(record.topic).inc(len(record.value))

    def serve(self, host: str, port: int) -> int:
        """Serve ``/metrics`` from a daemon thread and return its port.

        Raises:
            ConfigError: when the port cannot be had.
        """
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise ConfigError(
                f"metrics_port {port}: cannot listen on {host}: {error.strerror}"
            ) from error
        return int(server.server_port)
