"""One job's way off a failing card, as a pure state machine.

``cordon → place → checkpoint → stop → start → confirm``. The machine is fed with facts, as
often as one likes, and answers with at most one command; what it wants next depends only on
its own record and the facts, so after a restart it goes on where it stood.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from runner.job import ENDED, JobState
from runner.placement import Place


class MigrationState(StrEnum):
    """What the migration waits for."""

    REQUESTED = "requested"
    PLACING = "placing"
    CHECKPOINTING = "checkpointing"
    STOPPING = "stopping"
    STARTING = "starting"
    CONFIRMING = "confirming"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


_M = MigrationState
DONE: Final = frozenset({_M.COMPLETED, _M.FAILED, _M.WITHDRAWN})
UNTOUCHED: Final = frozenset({_M.REQUESTED, _M.PLACING})
"""States in which the job has not been touched yet."""
WITHDRAWABLE: Final = UNTOUCHED | {_M.CHECKPOINTING, _M.STOPPING, _M.STARTING}
"""States in which something can still be stopped: the job runs nowhere else yet."""

LOST_CAUSES: Final = frozenset({"lost", "node_lost"})
"""Causes after which nobody is there to write a checkpoint."""

STEP_NAMES: Final = ("cordon", "place", "checkpoint", "stop", "start", "confirm")


class Command(StrEnum):
    """What the machine asks of its driver; each may be repeated without harm."""

    STOP = "stop"
    """Ask the job for a checkpoint and a clean end."""
    KILL = "kill"
    """End the job's processes now."""


@dataclass(frozen=True)
class Step:
    """One step as it ended. ``outcome`` is ``done``, ``skipped`` or ``failed``."""

    name: str
    outcome: str
    at_ms: int
    detail: str = ""


@dataclass(frozen=True)
class Migration:
    """A request to leave a card (``device`` None: a node), for one job or none.

    ``generation`` is the job's at the time of the request: a higher one runs elsewhere.
    """

    id: str
    episode_id: str
    node: str
    device: str | None
    cause: str
    source: str
    requested_ms: int
    job: str | None = None
    generation: int = 0
    state: MigrationState = MigrationState.REQUESTED
    from_places: tuple[Place, ...] = ()
    to_places: tuple[Place, ...] = ()
    deadline_ms: int | None = None
    completed_ms: int | None = None
    steps: tuple[Step, ...] = ()
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.state in DONE


@dataclass(frozen=True)
class Facts:
    """The job as it stands now.

    ``alive``: a process of it exists. ``on_device``: its places touch the sick card.
    ``free_places``: where it could go now, None for nowhere. ``places``: where it runs.
    ``clean``: its last end was with exit code 0. ``progressed``: the present generation has
    reported a step, or (a job that never reports) has lived long enough. ``queues``: by its
    rule the job waits in the queue, not on the sick card, when there is nowhere to go.
    """

    now_ms: int
    job_state: JobState
    alive: bool
    on_device: bool
    generation: int
    places: tuple[Place, ...]
    free_places: tuple[Place, ...] | None
    progressed: bool
    clean: bool = True
    queues: bool = False


@dataclass(frozen=True)
class Limits:
    """How long each wait may last, in milliseconds."""

    checkpoint_ms: int = 30_000
    confirm_ms: int = 300_000


def advance(
    migration: Migration, facts: Facts | None, limits: Limits, now_ms: int
) -> tuple[Migration, Command | None]:
    """Carry a migration as far as the facts allow; ``facts`` is None when it has no job."""
    command: Command | None = None
    while not migration.done and command is None:
        before = migration
        if migration.state is _M.REQUESTED:
            card = str(Place(migration.node, migration.device))
            migration = _add(migration, "cordon", "done", now_ms, card)
            if facts is None:
                migration = _finish(migration, _M.COMPLETED, now_ms)
            else:
                migration = replace(migration, state=_M.PLACING)
        elif facts is None:
            migration = _finish(migration, _M.COMPLETED, now_ms)
        else:
            migration, command = _with_job(migration, facts, limits)
        if migration == before:
            break
    return migration, command


def withdraw(migration: Migration, now_ms: int) -> Migration:
    """Take a request back, unless the job runs (or starts) elsewhere already.

    A job that was asked to end cannot be called back, but its move can: what was chosen for it
    is free again, and it starts where it was.
    """
    if migration.state not in WITHDRAWABLE:
        return migration
    if migration.state not in UNTOUCHED:
        note = "withdrawn while the job was ending; it starts again where it was"
        migration = _add(migration, "confirm", "skipped", now_ms, note)
    return _finish(migration, _M.WITHDRAWN, now_ms)


def _with_job(m: Migration, facts: Facts, limits: Limits) -> tuple[Migration, Command | None]:
    now = facts.now_ms
    if facts.job_state in ENDED and m.state is not _M.CONFIRMING:
        return _finish(m, _M.COMPLETED, now, note=f"the job has ended: {facts.job_state}"), None
    if m.state is _M.CONFIRMING:
        return _confirm(m, facts), None
    if facts.generation > m.generation and facts.alive:
        # Started again since the request, and so elsewhere: the card was cordoned with it.
        m = _add(m, "start", "done", now, f"generation {facts.generation}")
        return replace(
            m, state=_M.CONFIRMING, to_places=facts.places, deadline_ms=now + limits.confirm_ms
        ), None
    if m.state is _M.PLACING:
        return _place(m, facts, limits)
    if m.state is _M.CHECKPOINTING:
        if not facts.alive:
            m = (
                _add(m, "checkpoint", "done", now, "the job ended on request")
                if facts.clean
                else _add(m, "checkpoint", "failed", now, "no clean end; the last one is used")
            )
            return replace(m, state=_M.STOPPING, deadline_ms=None), None
        if m.deadline_ms is not None and now >= m.deadline_ms:
            waited = limits.checkpoint_ms / 1000
            late = f"no end within {waited:g} s; the last one is used"
            m = _add(m, "checkpoint", "failed", now, late)
            return replace(m, state=_M.STOPPING, deadline_ms=None), Command.KILL
        return m, Command.STOP
    if m.state is _M.STOPPING:
        if facts.alive:
            return m, Command.KILL
        return replace(_add(m, "stop", "done", now), state=_M.STARTING), None
    return m, None


def _place(m: Migration, facts: Facts, limits: Limits) -> tuple[Migration, Command | None]:
    now = facts.now_ms
    if not facts.on_device and facts.alive:
        return _finish(m, _M.COMPLETED, now, note="the job does not run there any more"), None
    lost = m.cause in LOST_CAUSES
    if facts.free_places is None:
        if lost or not facts.queues or not facts.alive:
            # A predicted failure leaves the job where it is until there is somewhere to go.
            return m, Command.KILL if lost and facts.alive else None
        m = _add(m, "place", "skipped", now, "no free place: the job waits in the queue")
        m = replace(m, state=_M.CHECKPOINTING, deadline_ms=now + limits.checkpoint_ms)
        return m, Command.STOP
    m = _add(m, "place", "done", now, ", ".join(str(p) for p in facts.free_places))
    m = replace(m, to_places=facts.free_places)
    if lost:
        m = _add(m, "checkpoint", "skipped", now, f"cause {m.cause}: the last one is used")
        return replace(m, state=_M.STOPPING), Command.KILL if facts.alive else None
    if not facts.alive:
        m = _add(m, "checkpoint", "skipped", now, "the job had ended; the last one is used")
        return replace(m, state=_M.STOPPING), None
    return replace(m, state=_M.CHECKPOINTING, deadline_ms=now + limits.checkpoint_ms), Command.STOP


def _confirm(m: Migration, facts: Facts) -> Migration:
    now = facts.now_ms
    if facts.job_state is JobState.FAILED:
        m = _add(m, "confirm", "failed", now, "the job failed after the move")
        return _finish(m, _M.FAILED, now, error="the job failed after the move")
    if facts.job_state in ENDED:
        return _finish(_add(m, "confirm", "done", now, str(facts.job_state)), _M.COMPLETED, now)
    if facts.progressed and facts.alive:
        m = replace(_add(m, "confirm", "done", now, "the job goes on"), to_places=facts.places)
        return _finish(m, _M.COMPLETED, now)
    if m.deadline_ms is not None and now >= m.deadline_ms:
        m = _add(m, "confirm", "failed", now, "no progress")
        return _finish(m, _M.FAILED, now, error="the job made no progress after the move")
    return m


def _add(m: Migration, name: str, outcome: str, at_ms: int, detail: str = "") -> Migration:
    if any(step.name == name for step in m.steps):
        return m
    return replace(m, steps=(*m.steps, Step(name, outcome, at_ms, detail)))


def _finish(
    m: Migration, state: MigrationState, now_ms: int, *, error: str | None = None, note: str = ""
) -> Migration:
    if note:
        m = _add(m, "confirm", "skipped", now_ms, note)
    return replace(m, state=state, completed_ms=now_ms, deadline_ms=None, error=error)
