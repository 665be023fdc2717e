"""The nodes as they stand: what is cordoned, and where a job could go. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runner.job import ACTIVE, Job
from runner.migration import Migration, MigrationState
from runner.placement import NodeView, Place, choose

DEFAULT_NODE: Final = "local"
"""The one node of a runner that was told of none."""
RESERVING: Final = frozenset(
    {MigrationState.CHECKPOINTING, MigrationState.STOPPING, MigrationState.STARTING}
)
"""States in which a migration holds the places that it has chosen."""


@dataclass(frozen=True)
class Cordon:
    """Why a card (``device`` None: a node) is closed. ``source`` names who closed it."""

    node: str
    device: str | None
    source: str
    reason: str
    since_ms: int


def node_views(
    listed: Mapping[str, tuple[str, ...]], learned: Iterable[str], cordons: Sequence[Cordon]
) -> list[NodeView]:
    """Every known node with its cordons; ``listed``: the settings' nodes and their cards."""
    known = dict(listed)
    for name in learned:
        known.setdefault(name, ())
    if not known:
        known[DEFAULT_NODE] = ()
    closed = {c.node for c in cordons if c.device is None}
    cards: dict[str, set[str]] = {}
    for cordon in cordons:
        if cordon.device is not None:
            cards.setdefault(cordon.node, set()).add(cordon.device)
    return [
        NodeView(name, devices, name in closed, frozenset(cards.get(name, ())))
        for name, devices in known.items()
    ]


def find_places(
    job: Job,
    nodes: Sequence[NodeView],
    jobs: Iterable[Job],
    migrations: Iterable[Migration],
    first: Sequence[str],
) -> tuple[Place, ...] | None:
    """Places for a job's processes, those of ``first`` before those it prefers.

    For all of them or, by the job's rule, for as many as there is room for.

    What other jobs use, or are about to move to, is taken.
    """
    others = [other for other in jobs if other.id != job.id and other.state in ACTIVE]
    taken = [place for other in others for place in other.places]
    for migration in migrations:
        if migration.job != job.id and migration.state in RESERVING:
            taken.extend(migration.to_places)
    spec = job.spec
    for count in range(spec.world_size, spec.fewest - 1, -1):
        found = choose(
            nodes,
            count,
            taken=taken,
            only_nodes=spec.nodes,
            only_devices=spec.devices,
            prefer=[*first, *spec.prefer],
        )
        if found is not None:
            return found
    return None


def healthy_places(job: Job, migration: Migration) -> list[str]:
    """Where a job may stay when it leaves a card: its other places, as ``prefer`` names them."""
    return [str(p) for p in job.places if not p.touches(migration.node, migration.device)]


def reserved_places(job: Job, migrations: Iterable[Migration]) -> list[str]:
    """What its own migrations have chosen for a job, as ``prefer`` names them."""
    return [str(p) for m in migrations if m.job == job.id for p in m.to_places]
