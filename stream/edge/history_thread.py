"""A history's queue and thread: the event loop only appends to a bounded deque."""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger("rigcanary.history")

MAX_QUEUED: Final = 4_096
"""Values waiting at most; a node's minute of eight cards is some 35 kB, so about 140 MB."""
TICK_SECONDS: Final = 1.0
STOP_SECONDS: Final = 4.0


class BackgroundHistory(ABC):
    """Takes Kafka values of any thread and hands them to :meth:`write` in a thread of its own.

    ``counts`` holds what happened, by ``(table, outcome)`` with the outcomes ``written``,
    ``dropped`` (the queue was full) and ``failed`` (unusable, or refused for good).
    """

    def __init__(self, name: str, max_queued: int = MAX_QUEUED) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._name = name
        self._max_queued = max_queued
        self._queue: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._said: set[str] = set()

    def minutes(self, value: Mapping[str, Any]) -> None:
        """Keep one value of ``rigcanary.minutes``; enqueues only."""
        self._put("minutes", value)

    def risk(self, value: Mapping[str, Any]) -> None:
        """Keep one value of ``rigcanary.risks``; enqueues only."""
        self._put("risks", value)

    def decision(self, value: Mapping[str, Any]) -> None:
        """Keep one value of ``rigcanary.decisions``; enqueues only."""
        self._put("decisions", value)

    def event(self, value: Mapping[str, Any]) -> None:
        """Keep one value of ``rigcanary.events``; enqueues only."""
        self._put("events", value)

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Write what is queued, as far as that is possible in a few seconds, and end."""
        self._stopping.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    @property
    def queued(self) -> int:
        """Values that wait for the thread."""
        return len(self._queue)

    @abstractmethod
    def write(self, batch: list[tuple[str, Mapping[str, Any]]]) -> None:
        """Write ``(table, value)`` pairs; an empty batch comes about once a second."""

    @abstractmethod
    def begin(self) -> None:
        """Called once in the thread before anything is written."""

    @abstractmethod
    def finish(self) -> None:
        """Called once in the thread after the last write."""

    def count(self, table: str, outcome: str, n: int = 1) -> None:
        """Add to ``counts``."""
        key = (table, outcome)
        self.counts[key] = self.counts.get(key, 0) + n

    def say_once(self, topic: str, text: str, *arguments: object) -> None:
        """Warn about ``topic`` until :meth:`say_again` is told that it is well."""
        if topic not in self._said:
            self._said.add(topic)
            log.warning(text, *arguments)

    def say_again(self, topic: str) -> bool:
        """Whether ``topic`` had been warned about; from now on it may be again."""
        known = topic in self._said
        self._said.discard(topic)
        return known

    def _put(self, table: str, value: Mapping[str, Any]) -> None:
        if len(self._queue) >= self._max_queued:
            self.count(table, "dropped")
            self.say_once("full", "%s: the queue is full, values are dropped", self._name)
            return
        self._queue.append((table, value))

    def _run(self) -> None:
        self.begin()
        while True:
            last = self._stopping.is_set()
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), 256))]
            self.write(batch)
            if batch:
                continue
            self.say_again("full")
            if last:
                break
            self._stopping.wait(TICK_SECONDS)
        self.finish()


def seconds() -> float:
    """The clock of flushing and backing off, monotonic."""
    return time.monotonic()
