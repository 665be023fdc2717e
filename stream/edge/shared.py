"""What the parts of the worker share: one object, made in ``worker.py``."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from contract.decision import Evidence
from contract.topics import node_key
from stream.decide import Decider
from stream.edge.metrics import WorkerMetrics
from stream.edge.partition import Partition
from stream.edge.publish import Publisher
from stream.edge.tables import Tables
from stream.fleet_view import FleetView
from stream.settings import WorkerSettings
from stream.silence import SiteWatch
from stream.state import NodeState
from stream.watermark import NodeMinute


class History(Protocol):
    """Where minute rows, risks, decisions and events are kept for good; enqueue only."""

    def minutes(self, value: dict[str, Any]) -> None: ...
    def risk(self, value: dict[str, Any]) -> None: ...
    def decision(self, value: dict[str, Any]) -> None: ...
    def event(self, value: dict[str, Any]) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Scores(Protocol):
    """Risks of a batch, float arrays of shape [B], 0–1."""

    @property
    def risk_15m_B(self) -> npt.NDArray[Any]: ...
    @property
    def risk_60m_B(self) -> npt.NDArray[Any]: ...
    @property
    def risk_240m_B(self) -> npt.NDArray[Any]: ...


class Predictor(Protocol):
    """What the worker needs of ``models.serve``."""

    @property
    def version(self) -> str: ...
    @property
    def history_sums(self) -> int:
        """S, the numbers that are remembered of a card."""
        ...

    @property
    def history_version(self) -> str: ...
    def threshold(self, budget: float) -> float: ...
    def drift(self) -> Mapping[str, float]:
        """Population stability index by feature, of the windows scored lately."""
        ...

    def enter(
        self, sums_BS: npt.NDArray[np.float32], rows_BTC: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """The cards' histories after a minute; once a card and minute."""
        ...

    def score(
        self, rows_BTC: npt.NDArray[np.float32], sums_BS: npt.NDArray[np.float32]
    ) -> Scores: ...
    def explain(
        self, rows_TC: npt.NDArray[np.float32], sums_S: npt.NDArray[np.float32]
    ) -> list[Evidence]: ...


@dataclass(slots=True, eq=False)
class Shared:
    """State of the process. ``due`` holds node minutes to score, in the order they closed."""

    settings: WorkerSettings
    tables: Tables
    predictor: Predictor
    publisher: Publisher
    decider: Decider
    watch: SiteWatch
    view: FleetView
    metrics: WorkerMetrics
    histories: list[History]
    challenger: Predictor | None = None
    """Scores beside the predictor; decides nothing."""
    partitions: dict[int, Partition] = field(default_factory=dict)
    repairs: "Counter[str]" = field(default_factory=Counter)
    due: deque[tuple[int, NodeMinute]] = field(default_factory=deque)
    due_added: asyncio.Event = field(default_factory=asyncio.Event)
    live: bool = False
    ready: bool = False
    draining: bool = False
    known: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Devices of each site, and when (monotonic seconds) they were counted."""
    generation: int = 0
    """Rises at every rebalance: what began before it must not write after it."""

    @property
    def dry_run(self) -> bool:
        """Whether decisions are only recorded, not sent."""
        wish = self.settings.dry_run
        return wish == "on" or (wish == "auto" and not self.live)

    def state_of(self, site: str, node: str) -> NodeState | None:
        """A node's state, if one of this worker's partitions holds it."""
        key = node_key(site, node)
        found = (p.states[key] for p in self.partitions.values() if key in p.states)
        return next(found, None)

    def devices_known(self, site: str) -> int:
        """Devices of a site on the partitions that this worker owns, counted once a second."""
        now = time.monotonic()
        known = self.known.get(site)
        if known is not None and now - known[0] < 1.0:
            return known[1]
        count = sum(
            max(len(state.devices), partition.windows.devices(key))
            for partition in self.partitions.values()
            for key, state in partition.states.items()
            if state.site == site
        )
        self.known[site] = (now, count)
        return count

    def partition(self, number: int) -> Partition:
        """The partition's state, new if it was not there."""
        found = self.partitions.get(number)
        if found is None:
            found = self.partitions[number] = Partition(number)
        return found
