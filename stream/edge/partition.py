"""What a worker holds in memory of one partition."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stream.roster import Roster
from stream.state import NodeState
from stream.watermark import MinuteBook, NodeMinute
from stream.window import WindowStore


@dataclass(slots=True)
class Held:
    """A Kafka record whose samples are not all in closed minutes yet: it is not acknowledged."""

    event: Any
    waits_for: set[NodeMinute]
    pending: list[Any]
    """Dead letters that Kafka must have first."""


@dataclass(slots=True)
class Partition:
    """Open minutes, windows, node states, and records in offset order that wait to be acked."""

    number: int
    book: MinuteBook = field(default_factory=MinuteBook)
    roster: Roster = field(default_factory=Roster)
    windows: WindowStore = field(default_factory=WindowStore)
    states: dict[str, NodeState] = field(default_factory=dict)
    held: deque[Held] = field(default_factory=deque)
    closing: set[NodeMinute] = field(default_factory=set)
    next_offset: int | None = None
    last_arrival: float = 0.0
    idle_closed: bool = True
    sought_at: float = float("-inf")
    stalled_since: tuple[float, int] | None = None
    """When, and at which offset, it was first seen that Kafka holds more than has arrived."""

    def state(self, site: str, node: str, key: str) -> NodeState:
        """The state of a node, new if it was not known."""
        state = self.states.get(key)
        if state is None:
            state = self.states[key] = NodeState(site, node)
        return state

    def ackable(self) -> list[Any]:
        """Take the records that may be acknowledged: a prefix in offset order, never beyond.

        Faust commits past a gap when later offsets are acknowledged before earlier ones.
        """
        events = []
        while self.held and not self._waits(self.held[0]):
            events.append(self.held.popleft().event)
        return events

    def _waits(self, held: Held) -> bool:
        if not all(future.done() for future in held.pending):
            return True
        for future in held.pending:
            future.result()  # raises when Kafka refused the dead letter: nothing may be lost
        return any(self.book.is_open(m) or m in self.closing for m in held.waits_for)
