"""``rigcanary agent``: the loop that samples on schedule and publishes."""

import logging
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from agents.edge.connection import Connection
from agents.edge.notify import Notifier
from agents.edge.outbox import Outbox
from agents.edge.publisher import Publisher
from agents.edge.state_folder import state_folder
from agents.messages import Envelope, encode, new_boot_id
from agents.run import make_clock, make_sampler
from agents.sampler import Tick
from agents.schedule import Schedule
from agents.settings import AgentSettings
from contract.topics import MqttTopic

if TYPE_CHECKING:
    from agents.edge.metrics import AgentMetrics

log = logging.getLogger(__name__)

REPORT_TICKS = 720
"""How often the counters are logged: every hour at 5 s."""


class Agent:
    """Samples and publishes until told to stop."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._envelope = Envelope(settings.site, settings.node, new_boot_id())
        self._sampler = make_sampler(settings, self._envelope)
        # After the sources are open: a clock without an anchor begins now.
        self._clock = make_clock(settings)
        # A simulated clock may begin a little later than the agent: below 0 until then.
        self._schedule = Schedule.aligned(
            max(0.0, self._clock.monotonic()), settings.interval_seconds
        )
        self._stop = threading.Event()
        self._topics = {
            kind: str(MqttTopic(settings.site, settings.node, kind))
            for kind in ("telemetry", "events", "status")
        }
        connection = Connection(
            settings.mqtt,
            client_id=f"rigcanary-{settings.site}-{settings.node}",
            status_topic=self._topics["status"],
            online=lambda: self._envelope.status("online", self._clock.instant().ts),
            offline=lambda: self._envelope.status("offline", self._clock.instant().ts),
        )
        self._outbox = make_outbox(settings)
        self._publisher = Publisher(
            connection,
            settings.mqtt.queue_messages,
            self._outbox,
            settings.mqtt.max_inflight,
            settings.outbox.messages_per_second,
        )
        self._notifier = Notifier()
        self._metrics = self._serve_metrics()
        self.ticks = 0

    def _serve_metrics(self) -> "AgentMetrics | None":
        settings = self._settings
        if settings.metrics_port is None:
            return None
        # Imported where it is asked for: a rig that nobody scrapes does without.
        from agents.edge.metrics import AgentMetrics

        metrics = AgentMetrics(
            settings.site,
            settings.node,
            settings.interval_seconds / settings.clock.speed,
            self._sampler,
            self._schedule,
            self._publisher,
            self._outbox,
        )
        port = metrics.serve(settings.metrics_host, settings.metrics_port)
        log.info("metrics at http://%s:%d/metrics", settings.metrics_host, port)
        return metrics

    def stop(self) -> None:
        """End after the tick in progress."""
        self._stop.set()

    def run(self) -> None:
        """Sample on schedule until :meth:`stop`, or until ``clock.until_seconds`` have passed."""
        log.info(
            "agent %s/%s: source %s every %g s",
            self._settings.site,
            self._settings.node,
            ", ".join(self._settings.sources),
            self._settings.interval_seconds,
        )
        self._publisher.open()
        self._notifier.ready(self._settings.interval_seconds / self._settings.clock.speed)
        try:
            end = self._end()
            while True:
                due = self._schedule.next_due(self._clock.monotonic())
                if due >= end or not self._clock.sleep_until(due, self._stop):
                    break
                self._publish(self._sampler.tick(self._clock.instant()))
        finally:
            self._notifier.stopping()
            left = self._publisher.close()
            self._sampler.close()
            if self._metrics is not None:
                self._metrics.close()
            self._report()
            if left:
                log.warning("%d messages were not sent", left)

    def _end(self) -> float:
        until = self._settings.clock.until_seconds
        if until is None:
            return float("inf")
        # Simulated event time counts from clock.start, which is 0 on its monotonic clock.
        return until if self._settings.clock.simulated else self._schedule.start + until

    def _publish(self, tick: Tick) -> None:
        self.ticks += 1
        for notice in tick.notices:
            log.warning("%s", notice)
        for event in tick.events:
            log.warning("%s %s: %s", event["type"], event["device"], event["message"])
            self._publisher.publish(self._topics["events"], encode(event))
        if tick.telemetry is not None:
            self._publisher.publish(self._topics["telemetry"], encode(tick.telemetry))
        if self._metrics is not None:
            self._metrics.ticked(tick)
        self._notifier.ticked(self._status())
        if self.ticks % REPORT_TICKS == 0:
            self._report()

    def _status(self) -> str:
        broker = "connected" if self._publisher.connected else "no broker"
        kept = len(self._publisher) + (0 if self._outbox is None else len(self._outbox))
        return f"{self.ticks} ticks, {broker}, {kept} messages waiting"

    def _report(self) -> None:
        reads = ", ".join(f"{name} {what} {n}" for (name, what), n in self._sampler.reads.items())
        log.info(
            "%d ticks, %d skipped, %d messages dropped, reads: %s",
            self.ticks,
            self._schedule.skipped,
            self._publisher.dropped,
            reads or "none",
        )


def make_outbox(settings: AgentSettings) -> Outbox | None:
    """The outbox of the settings; None where there is to be none.

    Raises:
        ConfigError: another agent uses its folder.
    """
    folder = state_folder(settings) if settings.outbox.enabled else None
    if folder is None:
        return None
    outbox = Outbox(folder / "outbox", settings.outbox.max_bytes, settings.outbox.max_age_seconds)
    if len(outbox):
        log.warning("%d messages of an earlier run wait in %s", len(outbox), folder)
    return outbox


def serve(settings: AgentSettings) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    agent = Agent(settings)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        agent.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    agent.run()
