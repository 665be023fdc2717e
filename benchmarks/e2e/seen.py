"""What one run was told and what was seen of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.e2e.generator import Snapshot
from benchmarks.e2e.load import Node, Plan
from benchmarks.e2e.meters import Meter
from benchmarks.e2e.observer import Observer
from benchmarks.e2e.parts import Broker


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the command line says; see its help."""

    cards: int
    minutes: int
    broker: Broker = "embedded"
    kafka: str | None = None
    model: str = "default"
    interval_seconds: float = 5.0
    cards_a_node: int = 8
    nodes_a_site: int = 2
    history_minutes: int = 35
    fast_history_minutes: int = 3
    catch_up_minutes: float = 15.0
    peer_seconds: float = 8.0
    worker_script: Path | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """Work that has come in and is not done, at one instant.

    ``messages``: published, not yet taken in by the worker (MQTT broker, bridge, Kafka).
    ``minutes_due``: node minutes whose scoring is overdue.
    """

    at: float
    messages: int
    minutes_due: int

    @property
    def total(self) -> int:
        return self.messages + self.minutes_due


@dataclass(slots=True)
class Progress:
    """Counters of the path over time: wall time, published, through bridge, through worker."""

    at: list[float] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    bridge: list[float] = field(default_factory=list)
    worker_at: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Measured:
    """Everything that was seen in one run; :mod:`benchmarks.e2e.result` turns it into figures."""

    settings: RunSettings
    machine: dict[str, object]
    nodes: list[Node]
    plan: Plan | None = None
    start: float = 0.0
    end: float = 0.0
    caught_up: bool = False
    slow_seconds: float | None = None
    fast_began: float = 0.0
    progress: Progress = field(default_factory=Progress)
    meter: Meter | None = None
    lags: list[Lag] = field(default_factory=list)
    busy: float = 0.0
    windows_scored: int = 0
    snapshot: Snapshot | None = None
    bridge_counters: list[dict[str, float]] = field(default_factory=list)
    worker_counters: list[dict[str, float]] = field(default_factory=list)
    observer: Observer | None = None
    peers: list[dict[str, Any]] = field(default_factory=list)
