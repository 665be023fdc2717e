"""One run: brokers, bridge, worker and load up; history in; then the measured minutes."""

import asyncio
import contextlib
import math
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.e2e import compare, result
from benchmarks.e2e.child import GeneratorProcess
from benchmarks.e2e.generator import GeneratorSettings, Snapshot
from benchmarks.e2e.load import Plan
from benchmarks.e2e.machine import busy_seconds, machine
from benchmarks.e2e.meters import Meter
from benchmarks.e2e.observer import Observer
from benchmarks.e2e.parts import Parts, PartSettings
from benchmarks.e2e.seen import Lag, Measured, RunSettings
from benchmarks.e2e.signs import plan_signs
from contract.errors import RigcanaryError
from contract.minute import NODE_GRACE_MS
from onebox.ports import HOST
from onebox.processes import Supervisor

SCRAPE_SECONDS: Final = 15.0
"""How often the worker's metrics are read in the measured minutes, as a Prometheus would."""
_POLL_SECONDS: Final = 0.25
_SLACK_SECONDS: Final = 3.0
_DRAIN_SECONDS: Final = 120.0
_FASTEST_START_SECONDS: Final = 2.0


def say(text: str) -> None:
    """Progress for the person who waits."""
    print(text, file=sys.stderr, flush=True)


class Run:
    """The steps of one run, in order."""

    def __init__(self, settings: RunSettings, state: Path, supervisor: Supervisor) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._parts = Parts(
            PartSettings(
                settings.broker, settings.kafka, state, settings.model, settings.worker_script
            ),
            supervisor,
        )
        now = time.time()
        self._plan = Plan(
            settings.cards, settings.cards_a_node, settings.nodes_a_site,
            settings.interval_seconds, 60.0, now, now, f"b{uuid.uuid4().hex[:8]}",
        )  # fmt: skip
        self._seen = Measured(settings, machine(), self._plan.nodes())
        self._observer = Observer(self._parts.kafka)
        self._seen.observer = self._observer
        self._keys = [node.key for node in self._seen.nodes]

    async def whole(self) -> dict[str, Any]:
        """All of it.

        Raises:
            ConfigError: when the Kafka asked for cannot be used.
            RigcanaryError: when a part does not start, or ends while it is needed.
        """
        say("starting the brokers")
        await self._parts.start_brokers()
        # History ends when everything is up; it is sent as fast as it is taken.
        now = time.time() + _FASTEST_START_SECONDS
        fast_from = now - self._settings.fast_history_minutes * 60
        fast_from -= fast_from % 60
        minutes = self._settings.history_minutes - self._settings.fast_history_minutes
        self._plan = replace(self._plan, fast_from=fast_from, start=fast_from - minutes * 60)
        self._seen.plan = self._plan
        generator = GeneratorProcess(
            GeneratorSettings(self._plan, HOST, self._parts.mqtt_port, self._parts.secret)
        )
        try:
            say("starting bridge and worker")
            await self._parts.start_pipeline(await generator.url())
            await self._observer.start()
            await generator.connect()
            async with self._metering(generator):
                await self._catch_up(generator)
                await self._measure(generator)
                await self._drain(generator)
            await self._supervisor.stop(["bridge", "worker"])
            await self._peers()
        finally:
            await self._observer.stop()
            await generator.stop()
            await self._parts.delete_topics((compare.TOPIC,))
        return result.figures(self._seen)

    @contextlib.asynccontextmanager
    async def _metering(self, generator: GeneratorProcess) -> AsyncIterator[None]:
        pids = {"generator": generator.pid}
        for name, child in self._supervisor.children.items():
            if child.pid is not None:
                pids[{"mqtt": "mqtt_broker", "kafka": "kafka_broker"}.get(name, name)] = child.pid
        meter = self._seen.meter = Meter.of(pids)
        task = asyncio.create_task(meter.run())
        try:
            yield
        finally:
            task.cancel()
            await task

    def _check(self) -> None:
        for name, child in self._supervisor.children.items():
            if child.state == "failed":
                raise RigcanaryError(f"{name} ended: {child.output.reason()}")
        failure = self._observer.failure()
        if failure is not None:
            raise RigcanaryError(f"reading rigcanary.risks or .minutes failed: {failure!r}")

    async def _look(self, generator: GeneratorProcess, *, worker: bool) -> Snapshot:
        """One reading of the counters, kept; the bridge's lets the generator go on."""
        self._check()
        snapshot = await generator.snapshot()
        bridge = (await self._parts.bridge_counters()).get("messages_total", 0.0)
        generator.tell("taken", bridge)
        progress = self._seen.progress
        progress.at.append(time.time())
        progress.published.append(snapshot.published)
        progress.bridge.append(bridge)
        if worker:
            counters = await self._parts.worker_counters()
            progress.worker_at.append(time.time())
            progress.worker.append(taken_in(counters))
        return snapshot

    async def _lag(self, generator: GeneratorProcess, since: float) -> Lag:
        due = self._due(since)
        # The worker first: what is published meanwhile is lag, never less than none.
        counters = await self._parts.worker_counters()
        self._seen.worker_counters.append(counters)
        self._seen.bridge_counters.append(await self._parts.bridge_counters())
        snapshot = await generator.snapshot()
        return Lag(time.time(), max(0, snapshot.published - int(taken_in(counters))), due)

    def _due(self, since: float) -> int:
        grace = NODE_GRACE_MS / 1000 + self._settings.interval_seconds + _SLACK_SECONDS
        return self._observer.overdue(self._keys, since, grace)

    async def _catch_up(self, generator: GeneratorProcess) -> None:
        """History in, until the load runs in real time and nothing is behind.

        The slow part first, to its end, so that the fast part shows what a message costs.
        """
        settings, seen = self._settings, self._seen
        say(f"{settings.history_minutes} minutes of history of {settings.cards} cards")
        generator.tell("publish", True)
        began = time.monotonic()
        # The last minute stays open until the next message of its node.
        slow = len(self._keys) * (self._plan.slow_ticks - 1)
        deadline = began + settings.catch_up_minutes * 60
        if not await self._until(generator, deadline, lambda _: self._rows() >= slow):
            return
        seen.slow_seconds = time.monotonic() - began
        await self._look(generator, worker=True)
        seen.fast_began = time.time()
        generator.tell("go_on")

        def settled(snapshot: Snapshot) -> bool:
            if snapshot.behind_seconds >= settings.interval_seconds:
                return False
            messages = snapshot.published - seen.progress.worker[-1]
            return messages + self._due(time.time() - 240) <= self.noise

        seen.caught_up = await self._until(generator, deadline, settled)

    def _rows(self) -> int:
        return len(self._observer.scorings)

    async def _until(
        self,
        generator: GeneratorProcess,
        deadline: float,
        reached: Callable[[Snapshot], bool],
    ) -> bool:
        told = 0.0
        next_at = 0.0
        while time.monotonic() < deadline:
            began = time.monotonic()
            if began >= next_at:
                snapshot = await self._look(generator, worker=True)
                if reached(snapshot):
                    return True
                # A large fleet's metrics take the worker long to write: at most 4 % of its time.
                next_at = time.monotonic() + max(1.0, 25 * (time.monotonic() - began))
            else:
                snapshot = await self._look(generator, worker=False)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(
                    f"  {snapshot.published} messages sent, "
                    f"{self._seen.progress.worker[-1]:.0f} through the worker, "
                    f"{self._rows()} node minutes scored"
                )
            await asyncio.sleep(_POLL_SECONDS)
        say("  still behind: measuring as it is")
        generator.tell("go_on")
        return False

    @property
    def noise(self) -> int:
        """Lag that says nothing: what is sent in two seconds, and a few."""
        return 10 + math.ceil(2 * len(self._keys) / self._settings.interval_seconds)

    async def _measure(self, generator: GeneratorProcess) -> None:
        seen, settings = self._seen, self._settings
        seen.start = float(math.ceil((time.time() + 2) / 60) * 60)
        seen.end = seen.start + settings.minutes * 60
        generator.tell("signs", plan_signs(seen.nodes, seen.start, seen.end))
        await self._observer.count_rows()
        say(f"measuring {settings.minutes} min from {seen.start - time.time():.0f} s on")
        await asyncio.sleep(seen.start - time.time())
        generator.tell("reset_late")
        seen.busy, windows = -busy_seconds(), self._observer.windows_scored
        next_at = seen.start
        while next_at < seen.end:
            lag = await self._lag(generator, seen.start - 60)
            seen.lags.append(lag)
            self._check()
            next_at = min(next_at + SCRAPE_SECONDS, seen.end)
            await asyncio.sleep(max(0.0, next_at - time.time()))
        seen.windows_scored = self._observer.windows_scored - windows
        seen.busy += busy_seconds()
        seen.lags.append(await self._lag(generator, seen.start - 60))
        generator.tell("publish", False)
        say(f"  lag {seen.lags[0].total} at the start, {seen.lags[-1].total} at the end")

    async def _drain(self, generator: GeneratorProcess) -> None:
        """Let what is open be closed and scored, so that every message can be accounted for."""
        seen = self._seen
        deadline = time.monotonic() + _DRAIN_SECONDS
        while True:
            seen.snapshot = await generator.snapshot(seen.start, seen.end)
            missing = [
                key
                for key, count in seen.snapshot.sent.items()
                if self._observer.messages.get(key) != count or key not in self._observer.scorings
            ]
            if not missing or time.monotonic() > deadline:
                break
            self._check()
            await asyncio.sleep(1)
        say(f"  {len(missing) or 'no'} node minutes are not accounted for")

    async def _peers(self) -> None:
        if self._settings.peer_seconds > 0:
            say("peers")
            self._seen.peers = await compare.peers(
                self._parts.kafka, self._parts.profile, self._plan, self._settings.peer_seconds
            )


def taken_in(worker: dict[str, float]) -> float:
    """Messages that the worker has handled, by its counters."""
    names = ("messages_total", "duplicates_total", "dead_letters_total")
    return sum(worker.get(name, 0.0) for name in names)


async def run(settings: RunSettings) -> dict[str, Any]:
    """Run once and return the figures; see :meth:`Run.whole` for what it raises."""
    with tempfile.TemporaryDirectory(prefix="rigcanary-benchmark-") as folder:
        state = Path(folder)
        async with Supervisor(state / "log") as supervisor:
            return await Run(settings, state, supervisor).whole()
