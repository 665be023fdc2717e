"""The JSON that goes in and out over HTTP, and with it the OpenAPI description."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from contract.decision import Cause
from contract.topics import is_name
from runner.job import Job
from runner.migration import Migration
from runner.placement import Place
from runner.progress import Point
from runner.times import to_rfc3339
from runner.trainer.settings import TrainerSettings

Text = Annotated[str, Field(min_length=1, max_length=256)]
MAX_WORLD_SIZE = 64


class Constraints(BaseModel):
    """Where a job may run. Empty lists do not limit.

    ``devices`` and ``prefer`` take card names (``GPU-…`` or ``NODE/GPU-…``), ``prefer`` node
    names too. Naming a node that the runner does not know makes it known.
    """

    model_config = ConfigDict(extra="forbid")

    nodes: list[Text] = Field(default=[], max_length=4096)
    devices: list[Text] = Field(default=[], max_length=4096)
    prefer: list[Text] = Field(default=[], max_length=4096)

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

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [
        {"name": "chars", "trainer": {"steps": 3000}, "constraints": {"nodes": ["rig001"]}},
        {"name": "mine", "command": ["python", "train.py"], "checkpoint_dir": "/data/mine"},
    ]})

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


class PlaceOut(BaseModel):
    """Where one process of a job runs."""

    rank: int
    node: str
    device: str | None


class JobOut(BaseModel):
    """A job; ``node`` and ``device`` are where rank 0 runs (or ran last)."""

    id: str
    name: str
    state: Literal[
        "queued", "starting", "running", "stopping", "completed", "failed", "cancelled"
    ]
    node: str | None
    device: str | None
    step: int | None
    loss: float | None
    progress_at: str | None
    generation: int
    places: list[PlaceOut]
    command: list[str] | None
    trainer: dict[str, Any] | None
    world_size: int
    checkpoint_dir: str
    constraints: Constraints
    created_at: str
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    error: str | None

    @classmethod
    def of(cls, job: Job) -> "JobOut":
        first = job.places[0] if job.places else None
        spec = job.spec
        return cls(
            id=job.id, name=spec.name, state=job.state.value,
            node=first.node if first else None, device=first.device if first else None,
            step=job.step, loss=job.loss, progress_at=to_rfc3339(job.progress_ms),
            generation=job.generation, places=_places(job.places),
            command=list(spec.command) if spec.command else None,
            trainer=dict(spec.trainer) if spec.trainer is not None else None,
            world_size=spec.world_size, checkpoint_dir=spec.checkpoint_dir,
            constraints=Constraints(
                nodes=list(spec.nodes), devices=list(spec.devices), prefer=list(spec.prefer)
            ),
            created_at=to_rfc3339(job.created_ms) or "", started_at=to_rfc3339(job.started_ms),
            ended_at=to_rfc3339(job.ended_ms), exit_code=job.exit_code, error=job.error,
        )


class PointOut(BaseModel):
    """One reported step."""

    at: str
    step: int
    loss: float | None
    node: str | None
    device: str | None
    generation: int

    @classmethod
    def of(cls, point: Point) -> "PointOut":
        return cls(
            at=to_rfc3339(point.at_ms) or "", step=point.step, loss=point.loss, node=point.node,
            device=point.device, generation=point.generation,
        )


class StepOut(BaseModel):
    """One step of a migration, as it ended."""

    step: str
    outcome: Literal["done", "skipped", "failed"]
    at: str
    detail: str


class MigrationOut(BaseModel):
    """A job's way off a card; ``job``, ``from`` and ``to`` are null when none ran there."""

    id: str
    episode_id: str
    device: str | None
    node: str
    cause: str
    source: Literal["webhook", "alert"]
    state: str
    job: str | None
    from_: PlaceOut | None = Field(alias="from")
    to: PlaceOut | None
    requested_at: str
    completed_at: str | None
    steps: list[StepOut]
    error: str | None

    @classmethod
    def of(cls, m: Migration) -> "MigrationOut":
        rank = next(
            (i for i, p in enumerate(m.from_places) if p.touches(m.node, m.device)), 0
        )
        return cls(
            id=m.id, episode_id=m.episode_id, device=m.device, node=m.node, cause=m.cause,
            source="alert" if m.source == "alert" else "webhook", state=m.state.value, job=m.job,
            to=_place(m.to_places, rank), **{"from": _place(m.from_places, rank)},
            requested_at=to_rfc3339(m.requested_ms) or "",
            completed_at=to_rfc3339(m.completed_ms),
            steps=[
                StepOut.model_validate({
                    "step": s.name, "outcome": s.outcome, "at": to_rfc3339(s.at_ms),
                    "detail": s.detail,
                }) for s in m.steps
            ],
            error=m.error,
        )


class CardOut(BaseModel):
    """A card as the runner knows it."""

    device: str
    cordoned: bool
    reasons: list[str]
    jobs: list[str]


class NodeOut(BaseModel):
    """A node; ``cordoned`` says that the whole node is closed."""

    node: str
    cordoned: bool
    reasons: list[str]
    devices: list[CardOut]
    jobs: list[str]


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


class MigrationWithdrawn(Subject):
    """``data`` of ``migration.withdrawn``."""

    episode_id: Text


class WebhookReply(BaseModel):
    """What became of a webhook."""

    status: Literal["accepted", "duplicate", "ignored"]
    migrations: list[str] = []


class Alert(BaseModel):
    """One alert of a notification; Alertmanager and Grafana agree on these keys."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = {}
    startsAt: str = ""
    fingerprint: str = Field(default="", max_length=256)


class Notification(BaseModel):
    """The body that Alertmanager (version 4) or Grafana posts."""

    alerts: list[Alert] = Field(max_length=10_000)


class AlertReply(BaseModel):
    """What became of one alert."""

    fingerprint: str
    status: Literal["accepted", "duplicate", "ignored", "resolved"]
    node: str | None = None
    device: str | None = None
    migrations: list[str] = []
    detail: str = ""


class AlertsReply(BaseModel):
    """What became of a notification, alert by alert."""

    alerts: list[AlertReply]


class Health(BaseModel):
    """Whether the runner does its rounds."""

    status: Literal["ok", "stalled"]
    last_round_seconds: float


def _places(places: tuple[Place, ...]) -> list[PlaceOut]:
    return [PlaceOut(rank=i, node=p.node, device=p.device) for i, p in enumerate(places)]


def _place(places: tuple[Place, ...], rank: int) -> PlaceOut | None:
    return _places(places)[rank] if rank < len(places) else None
