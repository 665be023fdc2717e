"""Settings of ``rigcanary serve`` and ``rigcanary demo`` (contracts section 10)."""

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from contract.topics import is_name

MQTT_PORT, KAFKA_PORT, RUNNER_PORT, WEB_PORT = 1883, 9092, 8400, 6067
"""Ports of ``serve`` unless told otherwise: the usual ones of MQTT and Kafka, and the defaults
of the runner and of the worker's page."""


def default_state() -> Path:
    """``$XDG_STATE_HOME/rigcanary``, usually ``~/.local/state/rigcanary``."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "rigcanary"


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"{value!r} must be 1–64 of A–Z a–z 0–9 . _ -")
    return value


Port = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, AfterValidator(_name)]


class ServeSettings(BaseModel):
    """What ``rigcanary serve`` can be told. A port of 0 takes a free one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mqtt_port: Port = MQTT_PORT
    mqtt_v5_port: Port | None = None
    """A second listener for MQTT 5; the embedded broker needs one for each version."""
    kafka_port: Port = KAFKA_PORT
    runner_port: Port = RUNNER_PORT
    web_port: Port = WEB_PORT
    site: Name = "lab"
    """Name of the place the rigs stand in: used in the line that says how to attach one."""
    webhook: str | None = None
    """URL of one more receiver of decisions."""
    webhook_secret: SecretStr | None = None
    state: Path = Field(default_factory=default_state)
    model: str = "default"
    kafka_memory_mb: int = Field(default=512, ge=64)
    """Memory of the embedded Kafka at which it is started afresh; what counts is carried over."""

    @model_validator(mode="after")
    def _webhook_whole(self) -> Self:
        if (self.webhook is None) != (self.webhook_secret is None):
            raise ValueError("webhook and webhook_secret go together")
        return self


class DemoSettings(BaseModel):
    """What ``rigcanary demo`` can be told. Ports are free ones unless given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    speed: float = Field(default=60.0, gt=0, le=600)
    """Simulated seconds a second."""
    seed: int = Field(default=7, ge=0, lt=2**31)
    rigs: int = Field(default=16, ge=2, le=64)
    cards: int = Field(default=8, ge=1, le=16)
    plain: bool = False
    report: Path | None = None
    state: Path | None = None
    """An empty folder to keep state and logs in; else a temporary one, removed at the end."""
    mqtt_port: Port = 0
    kafka_port: Port = 0
    runner_port: Port = 0
    web_port: Port = 0
    model: str = "default"
    limit_seconds: float = Field(default=600.0, gt=0)
    """Wall time after which the demo ends in any case, counted from its start."""
