"""Settings of ``rigcanary agent``."""

import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from agents.sensor_settings import (
    RIG_SOURCES,
    HwmonSettings,
    IioSettings,
    IpmiSettings,
    KernelLogSettings,
    TenstorrentSettings,
)
from contract.errors import ConfigError
from contract.topics import is_name


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"{value!r} must be 1–64 of A–Z a–z 0–9 . _ - and not begin with . _ -")
    return value


Name = Annotated[str, AfterValidator(_name)]


def host_name() -> str:
    """This machine's name, with what a topic cannot hold replaced by ``-``."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:64]
    return name or "rig"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MqttSettings(_Frozen):
    """How to reach the MQTT broker. Secrets come from a file or the environment."""

    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=1, le=65535)
    protocol: Literal["3.1.1", "5"] = "3.1.1"
    username: str | None = None
    username_file: Path | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    keepalive_seconds: int = Field(default=30, ge=5, le=3600)
    max_inflight: int = Field(default=20, ge=1, le=1000)
    """Messages sent and not yet acknowledged. 20 is what MQTT brokers commonly allow a client."""
    queue_messages: int = Field(default=720, ge=1)
    """Messages kept in memory while the broker is away and there is no outbox, or its disk
    refuses (720 ticks of 5 s: one hour); then the oldest go."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("give password or password_file, not both")
        if self.username is not None and self.username_file is not None:
            raise ValueError("give username or username_file, not both")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if not self.tls and (self.ca_file or self.cert_file):
            raise ValueError("ca_file and cert_file need tls = true")
        return self

    def read_password(self) -> str | None:
        """The password, from the setting or its file.

        Raises:
            ConfigError: the file cannot be read.
        """
        if self.password is not None:
            return self.password.get_secret_value()
        return _read_line(self.password_file, "mqtt.password_file")

    def read_username(self) -> str | None:
        """The user name, from the setting or its file.

        Raises:
            ConfigError: the file cannot be read.
        """
        if self.username is not None:
            return self.username
        return _read_line(self.username_file, "mqtt.username_file")


def _read_line(path: Path | None, setting: str) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{setting} {path}: cannot read it: {reason}") from error


class OutboxSettings(_Frozen):
    """Messages on disk while the broker is away."""

    enabled: bool = True
    max_bytes: int = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    max_age_seconds: float = Field(default=3600.0, ge=60)
    """The stream files what is more than ten minutes late as a dead letter."""
    messages_per_second: float = Field(default=50.0, ge=1, le=10_000)
    """Waiting messages sent a second after the broker's return; fresh ones are not held up."""


class SimSettings(_Frozen):
    """The simulated rig that the source ``sim`` plays."""

    rigs: int = Field(default=16, ge=1, le=10_000)
    cards: int = Field(default=8, ge=1, le=16)
    seed: int = Field(default=7, ge=0)
    story_node: str | None = None
    """Which rig of the story to play; the rig with this agent's name unless given."""


class ClockSettings(_Frozen):
    """Event time. Only the sources ``sim`` and ``replay`` may run faster than the wall."""

    speed: float = Field(default=1.0, gt=0, le=100_000)
    start: float | None = None
    """Event time (Unix seconds) at ``anchor``; now unless given."""
    anchor: float | None = None
    """Wall time (Unix seconds) at which event time is ``start``; the agent's start unless given."""
    until_seconds: float | None = Field(default=None, gt=0)
    """End after this much event time since ``start``."""

    @property
    def simulated(self) -> bool:
        return self.speed != 1.0 or self.start is not None or self.anchor is not None


class AgentSettings(_Frozen):
    """Everything an agent is told."""

    site: Name = "lab"
    node: Name = Field(default_factory=host_name)
    sources: tuple[str, ...] = Field(default=("nvml",), min_length=1)
    """Names of ``agents.table``; of two that give the same sensor of a device, the first counts."""
    input: Path | None = None
    """A recorded output to read instead of the device, or the data set of the source ``replay``."""
    interval_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    state: Path | None = None
    """Folder that survives a restart; ``agents.edge.state_folder`` says what it is by default."""
    mqtt: MqttSettings = MqttSettings()
    outbox: OutboxSettings = OutboxSettings()
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of ``/metrics`` (0: any free one); none by default."""
    metrics_host: str = "127.0.0.1"
    sim: SimSettings = SimSettings()
    clock: ClockSettings = ClockSettings()
    hwmon: HwmonSettings = HwmonSettings()
    iio: IioSettings = IioSettings()
    ipmi: IpmiSettings = IpmiSettings()
    tenstorrent: TenstorrentSettings = TenstorrentSettings()
    kernel_log: KernelLogSettings = KernelLogSettings()

    @property
    def rig_only(self) -> bool:
        """Whether no source lists cards: the rig's own sensors then go by the node's name."""
        return set(self.sources) <= RIG_SOURCES | {"kernel_log"}

    @model_validator(mode="after")
    def _only_simulations_hurry(self) -> Self:
        real = sorted(set(self.sources) - {"sim", "replay"})
        if self.clock.simulated and real:
            raise ValueError(
                f"clock.speed, clock.start and clock.anchor are for the sources sim and replay; "
                f"{real[0]} measures real devices"
            )
        return self
