"""How to reach Kafka: what bridge, worker and sink can all be told (contracts section 10)."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` (``[::1]:1883`` for IPv6).

    Raises:
        ValueError: when it is not a host and a port of 1 to 65535.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{address!r} is not HOST:PORT")
    if not 0 < int(port) < 65536:
        raise ValueError(f"{address!r}: the port must be 1 to 65535")
    return host, int(port)


def _addresses(value: str) -> str:
    for address in value.split(","):
        split_address(address.strip())
    return value


class KafkaSettings(BaseModel):
    """Address, login and TLS of a Kafka cluster, and the topics that are created there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kafka: Annotated[str, AfterValidator(_addresses)] = "127.0.0.1:9092"
    """Kafka bootstrap servers, HOST:PORT[,HOST:PORT…]."""
    profile: Literal["kafka", "embedded"] = "kafka"
    """``embedded``: one record a batch, since Tansu's end offsets are wrong after larger ones."""
    kafka_security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    kafka_username: str | None = None
    kafka_password: SecretStr | None = None
    kafka_ca_file: Path | None = None
    """Certificate authority of the brokers; the system's own unless given."""
    kafka_cert_file: Path | None = None
    """This client's certificate and ``kafka_key_file``, where the brokers ask for one."""
    kafka_key_file: Path | None = None
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Of topics that are absent at start and are then created."""
    replication_factor: int | None = Field(default=None, ge=1, le=32)
    """Of topics that are created; the default is 3, or the number of brokers if fewer."""
    min_insync_replicas: int | None = Field(default=None, ge=1, le=32)
    """Of topics that are created: how many replicas must have a record before it counts as
    written; the brokers' own default unless given."""

    @model_validator(mode="after")
    def _kafka_pairs(self) -> Self:
        if (self.kafka_cert_file is None) != (self.kafka_key_file is None):
            raise ValueError("kafka_cert_file and kafka_key_file go together")
        login = (self.kafka_username, self.kafka_password)
        if self.kafka_security.startswith("sasl") and None in login:
            raise ValueError("kafka_security sasl_… needs kafka_username and kafka_password")
        if None not in login and not self.kafka_security.startswith("sasl"):
            raise ValueError("kafka_username needs kafka_security sasl_plaintext or sasl_ssl")
        replicas, least = self.replication_factor, self.min_insync_replicas
        if replicas is not None and least is not None and least > replicas:
            raise ValueError(f"min_insync_replicas {least} is over replication_factor {replicas}")
        return self
