"""Settings of ``rigcanary influx-sink`` and ``influx-init`` (contracts section 10)."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from stream.kafka_settings import KafkaSettings


def _http(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r} must begin with http:// or https://")
    return value


class InfluxSettings(BaseModel):
    """Where InfluxDB 2 is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(_http)] = "http://127.0.0.1:8086"
    org: str = "rigcanary"
    bucket: str = "rigcanary"
    token: SecretStr
    """May write to ``bucket``; for ``influx-init`` an operator's or all-access token."""


class InfluxInitSettings(InfluxSettings):
    """What ``rigcanary influx-init`` can be told; 0 days keeps for ever."""

    retention_days: int = Field(default=90, ge=0, le=36_500)
    """Of ``bucket``, which holds a point a card and minute."""
    hourly_bucket: str = "rigcanary-hourly"
    hourly_retention_days: int = Field(default=1_095, ge=0, le=36_500)


class InfluxSinkSettings(KafkaSettings):
    """What ``rigcanary influx-sink`` can be told."""

    influx: InfluxSettings
    group: str = Field(default="rigcanary-influx", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Consumer group: it remembers what was written; sinks of one group share the load."""
    batch_records: int = Field(default=200, ge=1, le=5_000)
    """Kafka records taken at once: their bytes are what the sink holds in memory."""
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of ``/metrics`` (0: any free one); none by default."""
    metrics_host: str = "127.0.0.1"
