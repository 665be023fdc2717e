"""The JSON that goes out over HTTP."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from runner.edge.messages import Constraints
from runner.job import Job
from runner.migration import Migration
from runner.placement import Place
from runner.progress import Point
from runner.times import to_rfc3339


class PlaceOut(BaseModel):
    """Where one process of a job runs."""

    rank: int
    node: str
    device: str | None


class JobOut(BaseModel):
    """A job; ``node`` and ``device`` are where rank 0 runs (or ran last)."""

    id: str
    name: str
    state: Literal["queued", "starting", "running", "stopping", "completed", "failed", "cancelled"]
    node: str | None
    device: str | None
    step: int | None
    loss: float | None
    progress_at: str | None
    steps_per_second: float | None
    """Of the present start, over all its reports."""
    goodput: float | None
    """Share (0–1) of the wall time since the first start that went into steps which were kept."""
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
    def of(cls, job: Job, now_ms: int) -> "JobOut":
        first = job.places[0] if job.places else None
        speed = job.account.steps_per_second(job.generation)
        goodput = job.account.goodput(job.started_ms, job.ended_ms or now_ms)
        spec = job.spec
        return cls(
            id=job.id,
            name=spec.name,
            state=job.state.value,
            node=first.node if first else None,
            device=first.device if first else None,
            step=job.step,
            loss=job.loss,
            progress_at=to_rfc3339(job.progress_ms),
            steps_per_second=None if speed is None else round(speed, 4),
            goodput=None if goodput is None else round(goodput, 4),
            generation=job.generation,
            places=_places(job.places),
            command=list(spec.command) if spec.command else None,
            trainer=dict(spec.trainer) if spec.trainer is not None else None,
            world_size=spec.world_size,
            checkpoint_dir=spec.checkpoint_dir,
            constraints=Constraints(
                nodes=list(spec.nodes),
                devices=list(spec.devices),
                prefer=list(spec.prefer),
                min_world_size=spec.min_world_size,
                when_full="queue" if spec.when_full == "queue" else "stay",
            ),
            created_at=to_rfc3339(job.created_ms) or "",
            started_at=to_rfc3339(job.started_ms),
            ended_at=to_rfc3339(job.ended_ms),
            exit_code=job.exit_code,
            error=job.error,
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
            at=to_rfc3339(point.at_ms) or "",
            step=point.step,
            loss=point.loss,
            node=point.node,
            device=point.device,
            generation=point.generation,
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
        rank = next((i for i, p in enumerate(m.from_places) if p.touches(m.node, m.device)), 0)
        return cls(
            id=m.id,
            episode_id=m.episode_id,
            device=m.device,
            node=m.node,
            cause=m.cause,
            source="alert" if m.source == "alert" else "webhook",
            state=m.state.value,
            job=m.job,
            to=_place(m.to_places, rank),
            **{"from": _place(m.from_places, rank)},
            requested_at=to_rfc3339(m.requested_ms) or "",
            completed_at=to_rfc3339(m.completed_ms),
            steps=[
                StepOut.model_validate(
                    {
                        "step": s.name,
                        "outcome": s.outcome,
                        "at": to_rfc3339(s.at_ms),
                        "detail": s.detail,
                    }
                )
                for s in m.steps
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


class WebhookReply(BaseModel):
    """What became of a webhook."""

    status: Literal["accepted", "duplicate", "ignored"]
    migrations: list[str] = []


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
