"""When minutes close: watermarks of a partition's nodes, and the samples that wait for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from contract.minute import LATENESS_MS, MINUTE_MS, NODE_GRACE_MS, PARTITION_GRACE_MS
from stream.minutes import Identity, minute_of
from stream.validate import Sample

MAX_MESSAGES_A_MINUTE: Final = 1_200
"""Messages of one node and minute that are held: 20 a second, bounds memory and the row."""
MAX_DEVICE_SAMPLES_A_MINUTE: Final = 60_000
"""Devices in these messages together, so that the minute's record fits into one of Kafka's: each
counter sample takes 13 bytes there. 1,200 messages of 50 cards are as many."""
SCAN_EVERY_MS: Final = 5_000
SCAN_EVERY_MESSAGES: Final = 1_024

NodeMinute = tuple[str, int]


class Arrival(Enum):
    """What became of a sample that arrived."""

    HELD = "held"
    DUPLICATE = "duplicate"
    LATE = "late"
    TOO_MANY = "too-many-messages"


@dataclass(slots=True)
class _Open:
    samples: list[Sample] = field(default_factory=list)
    seen: set[Identity] = field(default_factory=set)
    device_samples: int = 0


@dataclass(slots=True)
class _Node:
    watermark_ms: int
    open: dict[int, _Open] = field(default_factory=dict)


class MinuteBook:
    """Open minutes of one partition, in event time; nothing here knows a clock.

    The partition's watermark is the median of the watermarks of the nodes that advanced since
    the last look: one rig whose clock runs ahead closes no other rig's minutes.
    """

    def __init__(self) -> None:
        self.watermark_ms = 0
        self.late = 0
        self._nodes: dict[str, _Node] = {}
        self._newest_ms = 0
        self._scanned_ms = 0
        self._since_scan = 0
        self._advanced: set[str] = set()
        self._due: dict[NodeMinute, None] = {}

    def __len__(self) -> int:
        """Samples held."""
        return sum(len(o.samples) for n in self._nodes.values() for o in n.open.values())

    def node_watermark_ms(self, key: str) -> int:
        """Newest event time seen of the node, 0 when it never spoke."""
        node = self._nodes.get(key)
        return node.watermark_ms if node is not None else 0

    def restore(self, key: str, watermark_ms: int) -> None:
        """Set what a node's watermark was at least, from its stored rows."""
        node = self._nodes.setdefault(key, _Node(watermark_ms))
        node.watermark_ms = max(node.watermark_ms, watermark_ms)

    def add(self, sample: Sample) -> Arrival:
        """Hold a sample until its minute closes."""
        key, ts_ms = sample.key, sample.ts_ms
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node(0)
        minute_ms = minute_of(ts_ms)
        if minute_ms + MINUTE_MS + LATENESS_MS <= node.watermark_ms:
            self.late += 1
            return Arrival.LATE
        held = node.open.get(minute_ms)
        if held is None:
            held = node.open[minute_ms] = _Open()
        if sample.identity in held.seen:
            return Arrival.DUPLICATE
        device_samples = held.device_samples + len(sample.devices)
        if (
            len(held.samples) >= MAX_MESSAGES_A_MINUTE
            or device_samples > MAX_DEVICE_SAMPLES_A_MINUTE
        ):
            return Arrival.TOO_MANY
        held.device_samples = device_samples
        held.seen.add(sample.identity)
        held.samples.append(sample)
        self._advance(key, node, ts_ms)
        return Arrival.HELD

    def _advance(self, key: str, node: _Node, ts_ms: int) -> None:
        if ts_ms > node.watermark_ms:
            node.watermark_ms = ts_ms
            self._advanced.add(key)
        for minute_ms in node.open:
            if minute_ms + MINUTE_MS + NODE_GRACE_MS <= node.watermark_ms:
                self._due[key, minute_ms] = None
        self._newest_ms = max(self._newest_ms, ts_ms)
        self._since_scan += 1
        if (
            self._newest_ms >= self._scanned_ms + SCAN_EVERY_MS
            or self._since_scan >= SCAN_EVERY_MESSAGES
        ):
            self._scan()

    def _scan(self) -> None:
        marks = sorted(self._nodes[key].watermark_ms for key in self._advanced)
        if marks:
            self.watermark_ms = max(self.watermark_ms, marks[(len(marks) - 1) // 2])
        self._advanced.clear()
        self._scanned_ms, self._since_scan = self._newest_ms, 0
        for key, minute_ms in self._open():
            if minute_ms + MINUTE_MS + PARTITION_GRACE_MS <= self.watermark_ms:
                self._due[key, minute_ms] = None

    def _open(self) -> Iterator[NodeMinute]:
        return ((key, m) for key, node in self._nodes.items() for m in node.open)

    def due(self, *, everything: bool = False) -> list[NodeMinute]:
        """Minutes to close now, by node, oldest first; ``everything`` for an idle partition."""
        if everything:
            return sorted(self._open())
        return sorted(self._due)

    def is_open(self, node_minute: NodeMinute) -> bool:
        """Whether samples of the minute wait to be closed."""
        node = self._nodes.get(node_minute[0])
        return node is not None and node_minute[1] in node.open

    def take(self, node_minute: NodeMinute) -> list[Sample]:
        """Remove and return the samples of a minute that closes."""
        key, minute_ms = node_minute
        self._due.pop(node_minute, None)
        return self._nodes[key].open.pop(minute_ms).samples

    def forget_before(self, watermark_ms: int) -> None:
        """Forget nodes that spoke last before ``watermark_ms`` and hold nothing."""
        for key in [
            k for k, n in self._nodes.items() if n.watermark_ms < watermark_ms and not n.open
        ]:
            del self._nodes[key]
