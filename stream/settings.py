"""Settings of the worker (contracts section 10)."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from stream.kafka_settings import KafkaSettings
from stream.receivers import Receiver, check_unique


class LimitSettings(BaseModel):
    """Limits past which a card is moved at once; sources in ``stream.policy.Limits``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature_celsius: float = Field(default=97.0, gt=0, le=150)
    ripple_volts: float = Field(default=0.30, gt=0, le=10)


class WorkerSettings(KafkaSettings):
    """What ``rigcanary worker`` can be told."""

    app_id: str = Field(default="rigcanary-worker", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Consumer group; workers with the same id share the load."""
    instance: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Stable name of this worker within the group: after a crash and restart it gets its
    partitions back at once. Two running workers must not share it."""
    state: Path | None = None
    """Folder for the history and for this worker's files; without it no history is kept."""
    session_seconds: float = Field(default=10.0, ge=6.0, le=300.0)
    """How long the group waits for a dead worker before others take over its partitions."""
    web_host: str = "127.0.0.1"
    web_port: int = Field(default=6067, ge=0, le=65_535)
    """Port of the page, /healthz and /metrics; 0 takes a free one."""
    model: str = "default"
    """Folder of a trained model, or ``default``."""
    false_alarms_per_device_day: float = Field(default=0.033, gt=0)
    """Budget whose threshold decides on moves; the model's card lists what it was tuned for. The
    default is one a device-month: of a tenth of it the shipped model has seen too few healthy days
    to give a threshold that any failing card reaches in time."""
    dry_run: Literal["auto", "on", "off"] = "auto"
    """``auto``: until a receiver has answered ``test.ping`` once."""
    policy: Path | None = None
    """TOML file of the policy (docs/policy.md); what it leaves out keeps the defaults."""
    limits: LimitSettings = LimitSettings()
    """Limits for every card, whatever its model; the policy has one for each."""
    receivers: Annotated[tuple[Receiver, ...], AfterValidator(check_unique)] = ()
    score_batch: int = Field(default=1_024, ge=16, le=16_384)
    """Windows scored in one call."""

    @model_validator(mode="before")
    @classmethod
    def _influx_moved(cls, values: Any) -> Any:
        if isinstance(values, dict) and "influx" in values:
            raise ValueError("influx is a setting of `rigcanary influx-sink` now; move it there")
        return values
