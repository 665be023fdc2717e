"""``/metrics`` of the agent for Prometheus (contracts section 8): a collector that reads what is.

Nothing is registered per card: a card that is gone takes its series with it at the next scrape.
"""

import platform
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from agents.edge.device_view import INFO, DeviceNow, DeviceView, forgotten
from agents.edge.outbox import Outbox
from agents.edge.publisher import Publisher
from agents.sampler import Sampler, Tick
from agents.schedule import Schedule
from contract.errors import ConfigError
from contract.signals import SIGNALS

READ_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SamplerCounts(NamedTuple):
    """What the sampler counts: see ``sampler_counts``."""

    reads: Mapping[tuple[str, str], int]
    nulled: Mapping[tuple[str, str, str], int]
    read_seconds: Mapping[str, float]


def sampler_counts(sampler: Sampler) -> SamplerCounts:
    """The one place that knows the sampler's counters.

    ``reads`` by (source, outcome), ``nulled`` by (source, sensor, reason), ``read_seconds`` of
    each source's last read.
    """
    return SamplerCounts(sampler.reads, sampler.nulled, sampler.read_seconds)


class ReadTimes:
    """Histograms of how long reads took, one a source."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, read_seconds: Mapping[str, float]) -> None:
        """Add one tick's reads."""
        for source, seconds in read_seconds.items():
            counts = self._counts.setdefault(source, [0] * (len(READ_BUCKETS) + 1))
            counts[bisect_left(READ_BUCKETS, seconds)] += 1
            self._sums[source] = self._sums.get(source, 0.0) + seconds

    def family(self) -> Metric:
        """As Prometheus wants it."""
        out = HistogramMetricFamily(
            "rigcanary_agent_read_seconds", "How long a source's read took.", labels=["source"]
        )
        for source, counts in list(self._counts.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, READ_BUCKETS), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            out.add_metric([source], buckets, self._sums[source])
        return out


class AgentMetrics(Collector):
    """Collects from the agent's parts at each scrape."""

    def __init__(
        self,
        site: str,
        node: str,
        interval_seconds: float,
        sampler: Sampler,
        schedule: Schedule,
        publisher: Publisher,
        outbox: Outbox | None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = [site, node]
        self._sampler = sampler
        self._schedule = schedule
        self._publisher = publisher
        self._outbox = outbox
        self._wall = wall
        self._monotonic = monotonic
        self._zero = wall() - monotonic()
        self._view = DeviceView(interval_seconds, monotonic)
        self._times = ReadTimes()
        self._ticks = 0
        self._ticked_at: float | None = None
        self._lock = threading.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def ticked(self, tick: Tick) -> None:
        """Take what a tick gave; called by the sampling thread."""
        self._view.observe(tick.telemetry)
        with self._lock:
            self._ticks += 1
            self._ticked_at = self._wall()
            self._times.observe(sampler_counts(self._sampler).read_seconds)

    def serve(self, host: str, port: int) -> int:
        """Serve ``/metrics`` from a daemon thread and return its port.

        Raises:
            ConfigError: when the port cannot be had.
        """
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise ConfigError(
                f"metrics_port {port}: cannot listen on {host}: {error.strerror}"
            ) from error
        self._server = server
        return int(server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        yield from self._devices()
        yield from self._reading()
        yield from self._delivery()
        build = GaugeMetricFamily(
            "rigcanary_build_info",
            "1, with the version as label.",
            labels=["version", "python", "process"],
        )
        build.add_metric([_version(), platform.python_version(), "agent"], 1)
        yield build

    def _devices(self) -> Iterator[Metric]:
        now = self._monotonic()
        every = {n: d for n, d in self._view.devices().items() if not forgotten(d, now)}
        here = {name: device for name, device in every.items() if device.gone_at is None}
        labels = ["site", "node", "device"]

        def gauge(name: str, text: str, more: tuple[str, ...] = ()) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=[*labels, *more])

        present = gauge(
            "rigcanary_device_present", "1 while the card is there, 0 for a while after."
        )
        state = gauge("rigcanary_device_state", "1 for the state it is in.", ("state",))
        last = gauge(
            "rigcanary_device_last_sample_timestamp_seconds", "When it last answered, Unix time."
        )
        for name, device in every.items():
            present.add_metric([*self._node, name], float(device.gone_at is None))
            state.add_metric([*self._node, name, device.state], 1)
            last.add_metric([*self._node, name], device.ts)
        info = gauge("rigcanary_device_info", "1; what names the card.", ("index", *INFO))
        for name, device in here.items():
            words = [device.info.get(key, "") for key in ("index", *INFO)]
            info.add_metric([*self._node, name, *words], 1)
        yield from (present, state, last, info)
        for signal in SIGNALS:
            yield self._signal(signal.name, signal.kind, f"{signal.meaning} ({signal.unit}).", here)

    def _signal(self, name: str, kind: str, text: str, here: Mapping[str, DeviceNow]) -> Metric:
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        out = family(f"rigcanary_{name}", text, labels=["site", "node", "device"])
        for device_name, device in here.items():
            if name in device.values:
                out.add_metric([*self._node, device_name], device.values[name])
        return out

    def _reading(self) -> Iterator[Metric]:
        counts = sampler_counts(self._sampler)
        reads = CounterMetricFamily(
            "rigcanary_agent_reads", "Reads by source and outcome.", labels=["source", "outcome"]
        )
        for (source, outcome), count in list(counts.reads.items()):
            reads.add_metric([source, outcome.replace(" ", "_")], count)
        yield reads
        nulled = CounterMetricFamily(
            "rigcanary_agent_values_nulled",
            "Impossible values that were made null.",
            labels=["source", "sensor", "reason"],
        )
        for words, count in list(counts.nulled.items()):
            nulled.add_metric(words, count)
        yield nulled
        with self._lock:
            ticks, ticked_at = self._ticks, self._ticked_at
            yield self._times.family()
        yield CounterMetricFamily("rigcanary_agent_ticks", "Ticks taken.", ticks)
        yield CounterMetricFamily(
            "rigcanary_agent_ticks_skipped",
            "Ticks that had passed when their turn came.",
            self._schedule.skipped,
        )
        if ticked_at is not None:
            yield GaugeMetricFamily(
                "rigcanary_agent_last_tick_timestamp_seconds", "Unix time of it.", ticked_at
            )
        yield GaugeMetricFamily(
            "rigcanary_agent_clock_step_seconds",
            "How far the system's time was corrected since the agent began: a hint, no offset.",
            self._wall() - self._monotonic() - self._zero,
        )

    def _delivery(self) -> Iterator[Metric]:
        publisher, outbox = self._publisher, self._outbox
        dropped = CounterMetricFamily(
            "rigcanary_agent_messages_dropped", "Messages given up.", labels=["reason"]
        )
        dropped.add_metric(["memory"], publisher.dropped_memory)
        dropped.add_metric(["refused"], publisher.refused)
        dropped.add_metric(["denied"], publisher.denied)
        for reason in ("size", "age", "damaged"):
            dropped.add_metric([reason], outbox.dropped[reason] if outbox else 0)
        yield dropped
        for name, text, number in (
            ("messages_acknowledged", "Messages that the broker has.", publisher.acknowledged),
            ("connections", "Connections to the broker made.", publisher.connections),
            ("takeovers", "Connections another client seems to have taken.", publisher.takeovers),
            ("outbox_disk_errors", "What the disk refused.", outbox.disk_errors if outbox else 0),
        ):
            yield CounterMetricFamily(f"rigcanary_agent_{name}", text, number)
        for name, text, value in (
            ("connected", "1 while the broker is there.", float(publisher.connected)),
            ("queue_messages", "Messages that wait in memory.", len(publisher)),
            ("outbox_messages", "Messages on disk.", len(outbox) if outbox else 0),
            ("outbox_bytes", "What they take.", outbox.size_bytes if outbox else 0),
            (
                "outbox_oldest_seconds",
                "Age of the oldest message on disk.",
                outbox.oldest_age_seconds() if outbox else 0.0,
            ),
        ):
            yield GaugeMetricFamily(f"rigcanary_agent_{name}", text, value)


def _version() -> str:
    try:
        return version("rigcanary")
    except PackageNotFoundError:
        return "0"
