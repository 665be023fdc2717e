"""A job: its specification, its states, and the one table of legal moves between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from runner.account import Account
from runner.placement import Place


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    """Waits for a free place (or for its next attempt)."""
    STARTING = "starting"
    """Its processes were launched; nothing was reported yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Was asked to write a checkpoint and end."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = JobState
MOVES: Final[Mapping[JobState, frozenset[JobState]]] = {
    _S.QUEUED: frozenset({_S.STARTING, _S.FAILED, _S.CANCELLED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.QUEUED, _S.COMPLETED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.STOPPING, _S.QUEUED, _S.COMPLETED, _S.FAILED}),
    _S.STOPPING: frozenset({_S.QUEUED, _S.COMPLETED, _S.CANCELLED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
"""State → the states it may go to. A state without successors is an end."""

ENDED: Final = frozenset(state for state, following in MOVES.items() if not following)
ACTIVE: Final = frozenset({_S.STARTING, _S.RUNNING, _S.STOPPING})
"""States in which processes of the job may exist."""


class IllegalMove(RuntimeError):
    """A move that :data:`MOVES` does not have: a defect of the caller."""


@dataclass(frozen=True)
class JobSpec:
    """What somebody asked for. Exactly one of ``command`` and ``trainer`` is set.

    ``min_world_size``: with how few processes it may start where there is no room for all
    (None: all). ``when_full``: what it does when its card is to be left and there is nowhere
    to go: ``stay`` there until there is, or write a checkpoint and ``queue``.
    """

    name: str
    command: tuple[str, ...] | None
    trainer: Mapping[str, Any] | None
    world_size: int
    checkpoint_dir: str
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    min_world_size: int | None = None
    when_full: str = "stay"

    @property
    def fewest(self) -> int:
        """The smallest world that the job's rule allows."""
        return self.min_world_size or self.world_size


@dataclass(frozen=True)
class Job:
    """A job and everything that must survive a restart of the runner.

    ``generation`` counts its starts, ``launched_ms`` is the newest one's. ``failures`` counts
    unplanned ends since it last went past ``best_step``; ``not_before_ms`` holds the next
    attempt back. ``reported_generation`` is the newest one that wrote progress. ``home``: where
    the next start goes first, if it is free (a move was withdrawn after its processes ended).
    """

    id: str
    spec: JobSpec
    created_ms: int
    state: JobState = JobState.QUEUED
    cancelled: bool = False
    places: tuple[Place, ...] = ()
    generation: int = 0
    failures: int = 0
    not_before_ms: int = 0
    started_ms: int | None = None
    launched_ms: int = 0
    ended_ms: int | None = None
    step: int | None = None
    loss: float | None = None
    progress_ms: int | None = None
    best_step: int = -1
    reported_generation: int = 0
    progress_offset: int = 0
    error: str | None = None
    exit_code: int | None = None
    account: Account = field(default_factory=Account)
    home: tuple[Place, ...] = ()

    @property
    def reports(self) -> bool:
        """Whether progress is to be expected of it."""
        return self.spec.trainer is not None or self.reported_generation > 0

    def going(self, now_ms: int, settle_ms: int) -> bool:
        """Whether its present start is known to work.

        That is when it reported or, for a job that never reports, has lived for ``settle_ms``.
        """
        if self.reports:
            return self.reported_generation == self.generation
        return now_ms - self.launched_ms >= settle_ms

    def to(self, state: JobState, **changes: Any) -> "Job":
        """The job in another state.

        Raises:
            IllegalMove: when the table does not allow it.
        """
        if state not in MOVES[self.state]:
            raise IllegalMove(f"job {self.id}: {self.state} → {state}")
        return replace(self, state=state, **changes)

    def sits_on(self, node: str, device: str | None) -> bool:
        """Whether a process of it stands on that card, or (device None) on that node."""
        return any(place.touches(node, device) for place in self.places)


MAX_FAILURES: Final = 5
"""Unplanned ends in a row, without any progress between them, after which a job has failed."""


def backoff_ms(failures: int, jitter: float) -> int:
    """Wait before attempt ``failures`` + 1: 1, 2, 4 … 30 s, times 0.5–1 (``jitter`` in 0–1)."""
    full = min(1000 << min(max(failures - 1, 0), 5), 30_000)
    return round(full * (0.5 + 0.5 * jitter))
