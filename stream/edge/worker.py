"""The worker: a Faust app around the pure core.

Faust does partitions, consumption, offsets, tables with changelogs. Three of its habits lose
records and are kept away from here (docs/decisions): records are acknowledged as a prefix in
offset order only, the flow is stopped before recovery resumes the source topics, and every table
write names its partition.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any, Final

import faust
from faust.types import TP

from contract.errors import RigcanaryError
from contract.minute import IDLE_SECONDS
from contract.topics import COMMANDS, EVENTS, TELEMETRY
from stream import policy_file
from stream.budget import Budget, BudgetGate
from stream.decide import Decider
from stream.edge import embedded, recovery
from stream.edge.closing import Closer
from stream.edge.commands import Commands
from stream.edge.delivery_retries import Retries
from stream.edge.episodes import episodes
from stream.edge.faust_settings import faust_settings
from stream.edge.intake import Intake
from stream.edge.kafka_connection import connection_options
from stream.edge.metrics import WorkerMetrics
from stream.edge.model_watch import LOOK_SECONDS, ModelWatch, Source
from stream.edge.outbox import Outbox
from stream.edge.publish import Publisher
from stream.edge.scoring import Scorer
from stream.edge.sequence import Sequence
from stream.edge.shared import History, Predictor, Shared
from stream.edge.tables import Tables
from stream.edge.web import WebServer, build_app
from stream.edge.webhook import Deliverer, Hooks
from stream.fleet_view import FleetView
from stream.policy import with_limits
from stream.settings import WorkerSettings
from stream.silence import SiteWatch

log = logging.getLogger("rigcanary.worker")

CLOSE_SECONDS: Final = 0.1
SILENCE_SECONDS: Final = 1.0
STATUS_SECONDS: Final = 5.0
PING_GRACE_SECONDS: Final = 5.0
"""How long a fresh start waits for a receiver's answer to ``test.ping`` before it is ready."""
_RAW: Final = {
    "key_type": bytes,
    "value_type": bytes,
    "key_serializer": "raw",
    "value_serializer": "raw",
}


class Worker:
    """One worker process; :func:`run` makes and runs it."""

    def __init__(
        self,
        settings: WorkerSettings,
        partitions: int,
        predictor: Predictor,
        histories: list[History],
        registry: Source | None = None,
    ) -> None:
        self.app: Any = faust.App(**faust_settings(settings, partitions))
        if settings.profile == "embedded":
            embedded.read_promptly(self.app)
        policy = with_limits(
            policy_file.read(settings.policy), settings.limits.model_dump(exclude_unset=True)
        )
        threshold = predictor.threshold(settings.false_alarms_per_device_day)
        log.info("model %s: threshold %.4f", predictor.version, threshold)
        view = FleetView()
        gate = BudgetGate(Budget(policy.budget), self._devices_known)
        self.shared = Shared(
            settings=settings,
            tables=Tables(self.app, partitions, settings.min_insync_replicas),
            publisher=Publisher(self.app, partitions),
            predictor=predictor,
            decider=Decider(policy, gate, threshold, predictor.version),
            watch=SiteWatch(policy),
            view=view,
            metrics=WorkerMetrics(view),
            histories=histories,
        )
        self.shared.metrics.set_model_version(predictor.version)
        self.outbox = Outbox(self.shared)
        self.intake = Intake(self.shared, self.outbox)
        self.commands = Commands(self.shared, self.outbox)
        self.closer = Closer(self.shared, self.intake)
        self.scorer = Scorer(self.shared, self.outbox, self.closer)
        self.sequence = Sequence(
            lambda: self.app.consumer,
            self._committed_offset,
            lambda error: self.shared.metrics.errors.labels(error).inc(),
        )
        self._models = None if registry is None else ModelWatch(self.shared, registry)
        self._closing = asyncio.Lock()
        self._scoring = asyncio.Lock()
        self.failure: BaseException | None = None
        self._recovered = False
        self._started = time.monotonic()
        self._web: WebServer | None = None
        self._wire(partitions)

    def _wire(self, partitions: int) -> None:
        app = self.app
        readings = app.topic(TELEMETRY, partitions=partitions, **_RAW)
        events = app.topic(EVENTS, partitions=partitions, **_RAW)
        commands = app.topic(COMMANDS, partitions=partitions, **_RAW)
        app.agent(readings, name="telemetry")(self._telemetry)
        app.agent(events, name="events")(self._events)
        app.agent(commands, name="commands")(self._commands)
        app.on_partitions_revoked.connect(self._revoked)
        self.shared.tables.rows.on_recover(self._on_recover)
        for task in (self._close_loop, self._score_loop, self._watch_loop, self._status_loop):
            app.task(self._guarded(task))
        app.task(self._guarded(self._retry_loop))
        app.task(self._guarded(self._model_loop))

    def _devices_known(self, site: str) -> int:
        return self.shared.devices_known(site)

    # -- life ------------------------------------------------------------------------------------

    async def start_web(self) -> int:
        """Serve the page, health and metrics; returns the port."""
        settings = self.shared.settings
        application = build_app(
            self.shared.view,
            self.shared.metrics.registry,
            self.not_ready,
            status=self.status,
            stories=lambda **query: episodes(self.shared.partitions.values(), **query),
            answer=self.commands.answer,
        )
        self._web = WebServer(application, host=settings.web_host, port=settings.web_port)
        return await self._web.start()

    def start_deliverer(self) -> None:
        """Begin to deliver; every receiver gets its ``test.ping``."""
        metrics = self.shared.metrics
        receivers = self.shared.settings.receivers
        hooks = Hooks(
            on_ping_ok=self._ping_answered,
            on_attempt=metrics.attempt,
            on_room=self.outbox.submit_all,
            on_crash=self._crash,
        )
        deliverer = Deliverer(receivers, self.outbox.on_delivered, hooks=hooks)
        self.outbox.deliverer = deliverer
        metrics.track_outbox(deliverer.depth, [r.name for r in receivers])
        deliverer.ping()

    async def stop_edges(self) -> None:
        """Close what is not Faust's."""
        if self.outbox.deliverer is not None:
            await self.outbox.deliverer.close()
        for history in self.shared.histories:
            await history.stop()
        if self._web is not None:
            await self._web.stop()
        self.scorer.thread.shutdown(wait=False, cancel_futures=True)

    async def _ping_answered(self, receiver: str) -> None:
        if self._recovered and not self.shared.live:
            log.info("receiver %s answers: decisions are delivered from now on", receiver)
        else:
            log.info("receiver %s answers", receiver)
        self.shared.live = True

    def not_ready(self) -> list[str]:
        """Reasons why the worker is not ready."""
        reasons = []
        if not self._recovered:
            reasons.append("no partitions yet: joining the group or restoring tables")
        waited = time.monotonic() - self._started > PING_GRACE_SECONDS
        if self.shared.settings.receivers and not self.shared.live and not waited:
            reasons.append("no receiver has answered test.ping yet")
        return reasons

    def status(self) -> dict[str, Any]:
        """What the page shows of the worker itself."""
        shared = self.shared
        return {
            "model_version": shared.decider.model_version,
            "threshold": shared.decider.threshold,
            "dry_run": shared.dry_run,
            "partitions": sorted(shared.partitions),
            "waiting_moves": len(shared.decider.waiting),
            "held_samples": self.intake.held_samples,
            "due": len(shared.due),
        }

    def _crash(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            if not isinstance(error, RigcanaryError):
                log.critical("the worker ends: %r", error, exc_info=error)
        asyncio.get_running_loop().create_task(self.app.crash(error))

    def _guarded(self, task: Any) -> Any:
        async def run_task() -> None:
            try:
                await task()
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                # A loop that ended would leave a worker that runs on and decides nothing.
                self._crash(error)
                raise

        run_task.__name__ = run_task.__qualname__ = task.__name__
        return run_task

    # -- Kafka -----------------------------------------------------------------------------------

    def _committed_offset(self, tp: Any) -> int | None:
        offset = self.app.consumer._committed_offset.get(tp)  # noqa: SLF001 - no other way
        return None if offset is None else int(offset)

    async def _telemetry(self, stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            partition = self.shared.partition(message.partition)
            if await self.sequence.takes(partition, message.offset):
                await self.intake.telemetry(event)

    async def _events(self, stream: Any) -> None:
        async for event in stream.noack().events():
            await self.intake.structural(event)

    async def _commands(self, stream: Any) -> None:
        async for event in stream.noack().events():
            await self.commands.take(event)

    async def _revoked(self, _app: Any, revoked: Any, **_: Any) -> None:
        # Nothing begun before may still write when the next owner starts to read.
        self.shared.generation += 1
        self.closer.scored.set()
        async with self._closing, self._scoring:
            recovery.forget_partitions(self.shared, self.outbox)
        self.intake.held_samples = 0
        self.intake.room.set()
        self._recovered = False

    async def _on_recover(self) -> None:
        try:
            await recovery.stop_flow(self.app)
            assigned = {
                tp.partition for tp in self.app.consumer.assignment() if tp.topic == TELEMETRY
            }
            async with self._closing, self._scoring:
                recovery.forget_partitions(self.shared, self.outbox)
                await recovery.rebuild(self.shared, self.outbox, assigned)
            self._recovered = True
        except (RuntimeError, ValueError, TimeoutError, KeyError) as error:
            # Faust swallows what is raised here and would run on with empty windows.
            self._crash(error)

    # -- loops -----------------------------------------------------------------------------------

    async def _close_loop(self) -> None:
        while not self.app.should_stop:
            async with self._closing:
                if not self.shared.draining:
                    await self.closer.close_due()
            await asyncio.sleep(CLOSE_SECONDS)

    async def _score_loop(self) -> None:
        shared = self.shared
        while not self.app.should_stop:
            async with self._scoring:
                scored = await self.scorer.score_due()
            if not scored:
                shared.due_added.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(shared.due_added.wait(), 1.0)

    async def _watch_loop(self) -> None:
        while not self.app.should_stop:
            await self.intake.silence(self._idle_partitions())
            await self.intake.next_in_turn()
            # A full intake takes nothing, and that is no stall.
            if self._recovered and self.intake.room.is_set():
                await self.sequence.seek_stalled(list(self.shared.partitions.values()))
            await asyncio.sleep(SILENCE_SECONDS)

    async def _model_loop(self) -> None:
        while not self.app.should_stop:
            if self._models is not None:
                await self._models.look()
            self.shared.metrics.set_drift(self.shared.predictor.drift())
            await asyncio.sleep(LOOK_SECONDS)

    def _idle_partitions(self) -> set[int]:
        """Partitions from which everything was read a while ago."""
        idle = set()
        for number, partition in self.shared.partitions.items():
            high = self.app.consumer.highwater(TP(TELEMETRY, number))
            read = partition.next_offset or 0
            quiet = time.monotonic() - partition.last_arrival >= IDLE_SECONDS
            if quiet and (high is None or read >= high):
                idle.add(number)
        return idle

    async def _retry_loop(self) -> None:
        """Dead letters that a person wants sent again (``rigcanary deliveries retry``)."""
        kafka = connection_options(self.shared.settings)
        retries = Retries(kafka, self.outbox.retry, lambda: self._recovered)
        await retries.run(lambda: bool(self.app.should_stop))

    async def _status_loop(self) -> None:
        shared = self.shared
        while not self.app.should_stop:
            shared.view.tick(time.monotonic())
            for partition in shared.partitions.values():
                lag = time.time() - partition.book.watermark_ms / 1000
                label = str(partition.number)
                if partition.book.watermark_ms:
                    shared.metrics.watermark_lag_seconds.labels(label).set(lag)
                high = self.app.consumer.highwater(TP(TELEMETRY, partition.number))
                if high is not None and partition.next_offset is not None:
                    behind = max(0, high - partition.next_offset)
                    shared.metrics.lag_records.labels(label).set(behind)
            for name, count in shared.repairs.items():
                shared.metrics.repairs.labels(name).inc(count)
            shared.repairs.clear()
            await asyncio.sleep(STATUS_SECONDS)

    async def drain(self) -> None:
        """Store every open minute and acknowledge it, before a planned stop.

        The embedded broker may be about to lose its log; the rows are what remains.
        """
        async with self._closing:
            self.shared.draining = True
            await self.closer.close_due(everything=True)
        await asyncio.wait_for(self.app.consumer.commit(), 5.0)
