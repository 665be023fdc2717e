"""Settings of the runner process."""

from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from contract.topics import is_name


class NodeSettings(BaseModel):
    """A node where jobs may run, and its cards; without cards it is one place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    devices: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        site, slash, node = value.rpartition("/")
        if not is_name(node) or (slash and not is_name(site)):
            raise ValueError(f"{value!r} is not a node's name (NODE or SITE/NODE)")
        return value


class RunnerSettings(BaseModel):
    """What a runner needs; built once, in ``rigcanary runner``.

    ``webhook_secret``: one or several ``whsec_…`` separated by blanks, all valid (a rotation);
    without one, ``STATE/webhook-secret`` is read, and made at the first start. ``token``
    likewise with ``STATE/token``. Times are seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    state_dir: Path = Path("rigcanary-state/runner")
    nodes: tuple[NodeSettings, ...] = ()
    launcher: str = "local"
    webhook_secret: SecretStr | None = None
    token: SecretStr | None = None
    checkpoint_grace_seconds: float = Field(default=30.0, gt=0, le=3600)
    """From the request for a checkpoint to SIGKILL."""
    confirm_seconds: float = Field(default=300.0, gt=0, le=86400)
    """How long a moved job may take to show progress."""
    settle_seconds: float = Field(default=3.0, ge=0, le=3600)
    """How long a process that never reports must live to count as running."""
    requests_per_second: float = Field(default=100.0, ge=0, le=1e6)
    """Of one address in the long run, 0 for no limit; ``requests_burst`` at once."""
    requests_burst: int = Field(default=1000, ge=1, le=10**6)
    tick_seconds: float = Field(default=0.25, gt=0, le=10)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("webhook_secret", mode="before")
    @classmethod
    def _join_secrets(cls, value: Any) -> Any:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return " ".join(str(v) for v in value)
        return value

    @field_validator("webhook_secret", "token")
    @classmethod
    def _not_empty(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().strip():
            raise ValueError("is empty")
        return value

    @field_validator("host")
    @classmethod
    def _address(cls, value: str) -> str:
        if value != "localhost":
            ip_address(value)
        return value

    @field_validator("nodes")
    @classmethod
    def _unique(cls, value: tuple[NodeSettings, ...]) -> tuple[NodeSettings, ...]:
        names = [node.name for node in value]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ValueError(f"node {sorted(twice)[0]!r} stands twice")
        return value
