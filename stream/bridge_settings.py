"""Settings of the bridge (contracts section 10): MQTT in, Kafka out."""

import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from stream.kafka_settings import KafkaSettings, split_address

__all__ = ["BridgeSettings", "default_client_id", "split_address"]


def _address(value: str) -> str:
    split_address(value)
    return value


def default_client_id() -> str:
    """Stable over restarts on one machine; a second bridge there needs its own."""
    return f"rigcanary-bridge-{socket.gethostname()}"[:64]


class BridgeSettings(KafkaSettings):
    """What ``rigcanary bridge`` can be told."""

    mqtt: Annotated[str, AfterValidator(_address)] = "127.0.0.1:1883"
    """MQTT broker, HOST:PORT."""

    client_id: str = Field(default_factory=default_client_id, min_length=1, max_length=64)
    """MQTT client id: the broker keeps this bridge's unacknowledged messages under it."""
    share: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{0,64}$")
    """Bridges with the same share divide the messages among them; empty: no sharing.

    The default is ``rigcanary-bridge``, but none with ``embedded``: rumqttd 0.20 dies when the
    last member of a share goes away with unacknowledged messages.
    """
    mqtt_username: str | None = None
    mqtt_password: SecretStr | None = None
    mqtt_ca_file: Path | None = None
    """Certificate authority of the broker; giving it turns TLS on."""
    mqtt_cert_file: Path | None = None
    mqtt_key_file: Path | None = None
    mqtt_keepalive_seconds: int = Field(default=30, ge=5, le=3600)

    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"

    linger_ms: float = Field(default=100, ge=0, le=5_000)
    """Messages of one partition that arrive within this become one Kafka record."""
    quiet_ms: float = Field(default=25, ge=1, le=1_000)
    """… or sooner, when nothing came for this long: the broker's in-flight window is full."""
    max_record_bytes: int = Field(default=500_000, ge=1_000, le=900_000)
    """Size at which a record is closed; Kafka's own limit is 1 MB unless it is told otherwise."""
    max_in_hand: int = Field(default=10_000, ge=1, le=1_000_000)
    """Messages held at most; beyond it the bridge stops reading from the broker."""
    max_in_hand_bytes: int = Field(default=128 * 1024 * 1024, ge=1_000_000)
    stop_seconds: float = Field(default=2.5, ge=0, le=60)
    """At SIGTERM: how long Kafka has to take what is in hand; the rest stays at the broker."""

    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of ``/metrics`` (0: any free one); none by default."""
    metrics_host: str = "127.0.0.1"

    @property
    def share_in_force(self) -> str:
        """The share's name, empty for an ordinary subscription."""
        if self.share is not None:
            return self.share
        return "" if self.profile == "embedded" else "rigcanary-bridge"

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.mqtt_cert_file is None) != (self.mqtt_key_file is None):
            raise ValueError("mqtt_cert_file and mqtt_key_file go together")
        return self
