"""Bridge packer and worker in this process, with lists in place of Kafka and no clock of their own.

All of the worker's own parts are the real ones: intake, closing, windows, scoring, decisions.
"""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import orjson
from fake_worker import FakePredictor

from contract.topics import DEAD_LETTER, EVENTS, MINUTES, TELEMETRY
from stream import minutes
from stream.budget import Budget, BudgetGate
from stream.decide import Decider
from stream.edge.bridge_packer import Incoming, Outgoing, pack
from stream.edge.closing import Closer
from stream.edge.intake import Intake
from stream.edge.metrics import WorkerMetrics
from stream.edge.outbox import Outbox
from stream.edge.publish import Publisher
from stream.edge.scoring import Scorer
from stream.edge.shared import Shared
from stream.edge.tables import Tables
from stream.fleet_view import FleetView
from stream.policy import Policy
from stream.settings import WorkerSettings
from stream.silence import SiteWatch

PARTITIONS = 2
MAX_RECORD_BYTES = 500_000


def _answered() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


@dataclass
class _Topic:
    sent: list[tuple[int, bytes]]

    def send_soon(self, *, value: bytes, partition: int, key: bytes | None = None) -> Any:
        self.sent.append((partition, value))
        return _answered()


@dataclass
class _Table:
    written: list[tuple[int, bytes]]
    data: dict[bytes, bytes] = field(default_factory=dict)

    def send_changelog(self, partition: int, key: bytes, value: bytes) -> Any:
        self.written.append((partition, value))
        return _answered()


class InProcess:
    """``await take(messages)`` as a bridge would; ``sent`` holds what went to each topic."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.written: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.acked = 0
        self.taken = 0
        app: Any = SimpleNamespace(
            topic=lambda name, **_: _Topic(self.sent[name]),
            Table=lambda name, **_: _Table(self.written[name]),
        )
        view, policy = FleetView(), Policy()
        gate = BudgetGate(Budget(), self._devices_known)
        predictor = FakePredictor()
        self.shared = Shared(
            settings=WorkerSettings(dry_run="off"),
            tables=Tables(app, PARTITIONS),
            publisher=Publisher(app, PARTITIONS),
            predictor=predictor,
            decider=Decider(policy, gate, predictor.threshold(1), predictor.version),
            watch=SiteWatch(policy),
            view=view,
            metrics=WorkerMetrics(view),
            histories=[],
        )
        self.outbox = Outbox(self.shared)
        self.intake = Intake(self.shared, self.outbox)
        self.closer = Closer(self.shared, self.intake)
        self.scorer = Scorer(self.shared, self.outbox, self.closer)

    def _devices_known(self, site: str) -> int:
        return self.shared.devices_known(site)

    async def take(self, messages: list[Incoming]) -> list[Outgoing]:
        """Pack the messages and hand every record on; returns the records."""
        packed, _ = pack(messages, PARTITIONS, MAX_RECORD_BYTES)
        for record in packed:
            if record.topic == DEAD_LETTER:
                self.sent[DEAD_LETTER].append((0, record.value))
            else:
                partition = record.partition if record.partition is not None else 0
                received_ms = record.messages[0].received_ms
                await self.record(record.topic, partition, record.value, received_ms)
        return packed

    async def record(self, topic: str, partition: int, value: bytes, received_ms: int) -> None:
        """One record of Kafka's, as any producer may write it."""
        message = SimpleNamespace(partition=partition, timestamp=received_ms / 1000, value=value)
        event = SimpleNamespace(value=value, message=message, ack=self._ack)
        self.taken += 1
        if topic == TELEMETRY:
            await self.intake.telemetry(event)
        else:
            assert topic == EVENTS
            await self.intake.structural(event)

    def _ack(self) -> None:
        self.acked += 1

    async def work(self, *, everything: bool = False) -> None:
        """Close what is due (or everything), score it, look for silent nodes."""
        await self.closer.close_due(everything=everything)
        while await self.scorer.score_due():
            pass
        await self.intake.silence(set())

    def stored(self) -> dict[tuple[str, int], set[minutes.Identity]]:
        """Messages in the last row records of each (site/node, minute in ms), all partitions'."""
        last: dict[tuple[int, str, int], frozenset[minutes.Identity]] = {}
        for partition, value in self.written["rows"]:
            record = minutes.unpack(value)
            last[partition, record.key, record.minute_ms] = record.seen
        found: dict[tuple[str, int], set[minutes.Identity]] = defaultdict(set)
        for (_, key, minute_ms), seen in last.items():
            found[key, minute_ms] |= seen
        return found

    def rows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The last row that was published of each (node, minute in seconds)."""
        found = (orjson.loads(value) for _, value in self.sent[MINUTES])
        return {(row["node"], row["minute"]): row for row in found}

    def letters(self, since: int = 0) -> list[dict[str, Any]]:
        """Dead letters from the given place on."""
        return [orjson.loads(value) for _, value in self.sent[DEAD_LETTER][since:]]

    def reasons(self) -> "Counter[str]":
        """How many letters there are by reason."""
        return Counter(letter["reason"] for letter in self.letters())

    def close(self) -> None:
        """End the scoring thread."""
        self.scorer.thread.shutdown()
