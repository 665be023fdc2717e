"""What comes out of the path, read from Kafka as any user would: minute rows and risks."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.e2e.parts import PARTITIONS
from contract.topics import MINUTES, RISKS

NodeMinute = tuple[str, int]
_POLL_MS: Final = 200


@dataclass(slots=True)
class Scoring:
    """The newest risks of a node's minute: cards scored, cards without enough data, read at."""

    scored: int
    not_enough: int
    first_at: float


@dataclass(slots=True)
class Observer:
    """Follows ``rigcanary.risks`` from the start and ``rigcanary.minutes`` from ``count_rows``.

    ``scorings`` and ``messages`` are by (node key, minute in Unix seconds); ``messages`` is what
    the newest row of that minute was made of, the last one wins.
    """

    bootstrap: str
    scorings: dict[NodeMinute, Scoring] = field(default_factory=dict)
    messages: dict[NodeMinute, int] = field(default_factory=dict)
    windows_scored: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Begin with the risks."""
        self._tasks.append(asyncio.create_task(self._follow(RISKS, from_start=True)))

    async def count_rows(self) -> None:
        """From now on, note the minute rows too (they are large: not during the history)."""
        self._tasks.append(asyncio.create_task(self._follow(MINUTES, from_start=False)))

    async def stop(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, topic: str, *, from_start: bool) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        await consumer.start()
        try:
            consumer.assign(partitions)
            if not from_start:
                await consumer.seek_to_end(*partitions)
            while True:
                batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=500)
                at = time.time()
                for records in batches.values():
                    for record in records:
                        value = orjson.loads(record.value)
                        key = (f"{value['site']}/{value['node']}", int(value["minute"]))
                        if topic == RISKS:
                            self._risks(key, value["devices"], at)
                        else:
                            self.messages[key] = int(value["messages"])
                await asyncio.sleep(0)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await consumer.stop()

    def _risks(self, key: NodeMinute, devices: list[Mapping[str, object]], at: float) -> None:
        scored = sum(device["status"] == "scored" for device in devices)
        self.windows_scored += scored
        before = self.scorings.get(key)
        first_at = before.first_at if before is not None else at
        self.scorings[key] = Scoring(scored, len(devices) - scored, first_at)

    def failure(self) -> BaseException | None:
        """What ended the reading, if anything did."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    def overdue(self, keys: list[str], since: float, grace_seconds: float) -> int:
        """Node minutes from ``since`` on whose scoring is overdue now.

        A minute is due ``grace_seconds`` after its end: the lateness allowance and one interval.
        """
        last = int((time.time() - grace_seconds) // 60) * 60
        wanted = range(int(since // 60) * 60, last, 60)
        return sum((key, minute) not in self.scorings for minute in wanted for key in keys)
