"""The JSON that comes in over HTTP."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from contract.decision import Cause
from contract.topics import is_name
from runner.trainer.settings import TrainerSettings

Text = Annotated[str, Field(min_length=1, max_length=256)]
MAX_WORLD_SIZE = 64


class Constraints(BaseModel):
    """Where a job may run. Empty lists do not limit.

    ``devices`` and ``prefer`` take card names (``GPU-…`` or ``NODE/GPU-…``), ``prefer`` node
    names too. Naming a node that the runner does not know makes it known. Where there is no
    room, the job starts with as few as ``min_world_size`` processes (null: all or none), and
    leaving a card with nowhere to go it keeps running there (``stay``) or writes a checkpoint
    and waits (``queue``).
    """

    model_config = ConfigDict(extra="forbid")

    nodes: list[Text] = Field(default=[], max_length=4096)
    devices: list[Text] = Field(default=[], max_length=4096)
    prefer: list[Text] = Field(default=[], max_length=4096)
    min_world_size: int | None = Field(default=None, ge=1, le=MAX_WORLD_SIZE)
    when_full: Literal["stay", "queue"] = "stay"

    @field_validator("nodes")
    @classmethod
    def _node_names(cls, value: list[str]) -> list[str]:
        for name in value:
            site, slash, node = name.rpartition("/")
            if not is_name(node) or (slash and not is_name(site)):
                raise ValueError(f"{name!r} is not a node's name (NODE or SITE/NODE)")
        return value


class JobRequest(BaseModel):
    """A job to run: either a ``command`` (no shell) or the built-in ``trainer``."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "chars", "trainer": {"steps": 3000}, "constraints": {"nodes": ["rig001"]}},
                {"name": "mine", "command": ["python", "train.py"], "checkpoint_dir": "/data/mine"},
            ]
        },
    )

    name: Text
    command: list[Annotated[str, Field(max_length=131072)]] | None = Field(
        default=None, min_length=1, max_length=1024
    )
    trainer: TrainerSettings | None = None
    world_size: int = Field(default=1, ge=1, le=MAX_WORLD_SIZE)
    checkpoint_dir: Annotated[str, Field(max_length=4096)] | None = None
    constraints: Constraints = Constraints()

    @model_validator(mode="after")
    def _one_of(self) -> "JobRequest":
        if (self.command is None) == (self.trainer is None):
            raise ValueError("give either command or trainer")
        fewest = self.constraints.min_world_size
        if fewest is not None and fewest > self.world_size:
            raise ValueError("constraints.min_world_size is more than world_size")
        if self.trainer is not None and self.world_size != 1:
            raise ValueError("the built-in trainer runs with world_size 1 in this version")
        if any("\0" in part for part in self.command or []) or (
            self.command and not self.command[0]
        ):
            raise ValueError("command holds an empty program or a NUL character")
        folder = self.checkpoint_dir
        if folder is not None and (not folder.startswith("/") or "\0" in folder):
            raise ValueError("checkpoint_dir must be an absolute path")
        return self


class ReleaseRequest(BaseModel):
    """What to release: one card, or (null) the node with all its cards."""

    model_config = ConfigDict(extra="forbid")

    device: Text | None = None


class WebhookBody(BaseModel):
    """The envelope of contracts section 6."""

    type: Text
    timestamp: Text
    data: dict[str, Any] = {}


class Subject(BaseModel):
    """What device events have in common. Unknown keys are fine: senders may be newer."""

    site: str | None = None
    node: Text
    device: Text | None = None
    episode_id: Text | None = None
    reason: str | None = Field(default=None, max_length=2000)


class MigrationRequested(Subject):
    """``data`` of ``migration.requested``, as far as the runner needs it."""

    episode_id: Text
    cause: Cause

    @model_validator(mode="after")
    def _card_or_node(self) -> "MigrationRequested":
        if self.device is None and self.cause != "node_lost":
            raise ValueError(f"device is needed for cause {self.cause}")
        return self


class Quarantined(Subject):
    """``data`` of ``device.quarantined``; ``by`` names the person who said so, if one did."""

    by: str | None = Field(default=None, max_length=256)


class MigrationWithdrawn(Subject):
    """``data`` of ``migration.withdrawn``."""

    episode_id: Text


class Alert(BaseModel):
    """One alert of a notification; Alertmanager and Grafana agree on these keys."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = {}
    startsAt: str = ""
    fingerprint: str = Field(default="", max_length=256)


class Notification(BaseModel):
    """The body that Alertmanager (version 4) or Grafana posts."""

    alerts: list[Alert] = Field(max_length=10_000)
