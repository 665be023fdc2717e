"""Prometheus metrics of the worker (contracts section 8): the fleet's, and its own.

Each process makes its own registry; nothing is global. Device series come from a collector over
the fleet view, so that a device that is gone takes its series with it at the next scrape.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from contract.signals import SIGNALS
from stream.edge.webhook_http import package_version
from stream.fleet_device import DeviceView
from stream.fleet_view import FleetView

LABELS: Final = ("site", "node", "device")
INFO_LABELS: Final = ("index", "vendor", "model", "serial", "driver")
SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class FleetCollector(Collector):
    """The devices of a fleet view as metrics.

    Sensors carry the value of the newest minute row: the minute's mean of a gauge, the last
    reading of a counter. A sensor that a card lacks has no series. A device that is gone has only
    ``rigcanary_device_present 0`` and its state until the view forgets it.
    """

    def __init__(self, view: FleetView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._clock = clock

    def describe(self) -> Iterator[Metric]:
        """Nothing to compare with: the names are all this collector's own."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Metric families of the view as it is now."""
        view = self._view
        view.tick(self._clock())
        devices = view.devices()
        here = [d for d in devices if view.present(d)]

        present = GaugeMetricFamily(
            "rigcanary_device_present", "1 while the device is there, 0 for a while after it is "
            "gone, then no series.", labels=LABELS)
        gone = {id(d) for d in devices} - {id(d) for d in here}
        for d in devices:
            present.add_metric(_key(d), 0.0 if id(d) in gone else 1.0)
        yield present

        state = GaugeMetricFamily(
            "rigcanary_device_state", "1 for the state the device is in; other states have no "
            "series.", labels=(*LABELS, "state"))
        for d in devices:
            state.add_metric((*_key(d), view.state(d)), 1.0)
        yield state

        info = InfoMetricFamily("rigcanary_device", "What names the card.",
                                labels=(*LABELS, *INFO_LABELS))
        for d in here:
            index = "" if d.index is None else str(d.index)
            words = (index, *(d.info.get(name, "") for name in INFO_LABELS[1:]))
            info.add_metric((*_key(d), *words), {})
        yield info

        yield _gauge("rigcanary_device_last_sample_timestamp_seconds",
                     "End of the newest minute with samples, Unix time.", devices,
                     lambda d: d.minute + 60.0 if d.minute else None)
        yield _gauge("rigcanary_device_failure_risk_ratio",
                     "Probability of failure within 60 minutes.", here, lambda d: d.risk)
        yield _gauge("rigcanary_device_health_score", "0 to 100; under 60 is unhealthy.", here,
                     lambda d: d.health_score)
        yield _gauge("rigcanary_device_window_completeness_ratio",
                     "Share of the last 60 minutes that holds samples.", here,
                     lambda d: d.completeness)
        for position, signal in enumerate(SIGNALS):
            family: GaugeMetricFamily | CounterMetricFamily
            text = f"{signal.meaning[0].upper()}{signal.meaning[1:]} ({signal.unit})."
            if signal.kind == "counter":
                family = CounterMetricFamily(f"rigcanary_{signal.name}", text, labels=LABELS)
            else:
                family = GaugeMetricFamily(f"rigcanary_{signal.name}", text, labels=LABELS)
            for d in here:
                value = d.values[position] if d.values else None
                if value is not None:
                    family.add_metric(_key(d), value)
            yield family

        breaker = GaugeMetricFamily("rigcanary_breaker_open",
                                    "1 while the site's circuit breaker is open.", labels=("site",))
        for site, is_open in view.breakers().items():
            breaker.add_metric((site,), float(is_open))
        yield breaker
        refused = CounterMetricFamily("rigcanary_view_refused", "Device rows that did not fit "
                                      "into the bounded fleet view.")
        refused.add_metric((), view.refused)
        yield refused


def _key(device: DeviceView) -> tuple[str, str, str]:
    return device.site, device.node, device.device


def _gauge(
    name: str, text: str, devices: list[DeviceView], value: Callable[[DeviceView], float | None]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=LABELS)
    for device in devices:
        number = value(device)
        if number is not None:
            family.add_metric(_key(device), number)
    return family


class WorkerMetrics:
    """The worker's own figures; attributes are prometheus-client metrics, used directly.

    ``records``, ``messages`` (counters) · ``repairs{signal}`` · ``dead_letters{reason}`` ·
    ``duplicates`` · ``minute_rows{kind}`` (``published``, ``corrected``) ·
    ``scorings{status}`` (device windows: ``scored``, ``not_enough_data``) · ``scoring_seconds``
    (histogram a batch) · ``decisions{type,cause}`` (``cause`` may be ``""``) ·
    ``watermark_lag_seconds{partition}`` and ``lag_records{partition}`` (gauges) ·
    ``deliveries{receiver,status}`` · ``delivery_attempts{receiver,outcome}`` ·
    ``delivery_seconds{receiver}`` (histogram) · ``decision_to_delivery_seconds`` (histogram) ·
    ``outbox_depth{receiver}`` (gauge) · ``errors{kind}``.
    """

    def __init__(self, view: FleetView | None = None) -> None:
        self.registry = r = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=r)
        if view is not None:
            r.register(FleetCollector(view))
        p = "rigcanary_worker_"
        self.records = Counter(p + "records", "Kafka records read.", registry=r)
        self.messages = Counter(p + "messages", "Telemetry messages used.", registry=r)
        self.duplicates = Counter(p + "duplicates", "Messages seen before, not counted again.",
                                  registry=r)
        self.repairs = Counter(p + "repairs", "Impossible sensor values set to null.", ["signal"],
                               registry=r)
        self.dead_letters = Counter(p + "dead_letters", "Unusable messages filed.", ["reason"],
                                    registry=r)
        self.minute_rows = Counter(p + "minute_rows", "Minute rows, by whether they corrected "
                                   "an earlier one.", ["kind"], registry=r)
        self.scorings = Counter(p + "scorings", "Device windows looked at.", ["status"], registry=r)
        self.scoring_seconds = Histogram(p + "scoring_seconds", "Time to score one batch.",
                                         buckets=SECONDS_BUCKETS, registry=r)
        self.decisions = Counter(p + "decisions", "Decisions made.", ["type", "cause"], registry=r)
        self.watermark_lag_seconds = Gauge(
            p + "watermark_lag_seconds", "Wall clock minus the partition's event time.",
            ["partition"], registry=r)
        self.lag_records = Gauge(p + "lag_records", "Records in Kafka not read yet.",
                                 ["partition"], registry=r)
        self.deliveries = Counter(p + "deliveries", "Webhooks finished.", ["receiver", "status"],
                                  registry=r)
        self.delivery_attempts = Counter(p + "delivery_attempts", "Webhook requests made.",
                                         ["receiver", "outcome"], registry=r)
        self.delivery_seconds = Histogram(p + "delivery_seconds", "Time of one webhook request.",
                                          ["receiver"], buckets=SECONDS_BUCKETS, registry=r)
        self.decision_to_delivery_seconds = Histogram(
            p + "decision_to_delivery_seconds", "Wall time from a decision's record to its 2xx.",
            buckets=(*SECONDS_BUCKETS, 60, 300, 3600), registry=r)
        self.outbox_depth = Gauge(p + "outbox_depth", "Webhooks not delivered yet.", ["receiver"],
                                  registry=r)
        self.errors = Counter(p + "errors", "Failures of the worker itself.", ["kind"], registry=r)
        self.build_info = Gauge("rigcanary_build_info", "1; what runs.",
                                ["process", "version", "model_version"], registry=r)
        self.set_model_version("")

    def set_model_version(self, model_version: str) -> None:
        """Say in ``rigcanary_build_info`` which model is served."""
        self.build_info.clear()
        self.build_info.labels("worker", package_version(), model_version).set(1)

    def attempt(self, receiver: str, outcome: str, seconds: float) -> None:
        """Count one webhook request (``webhook.Hooks.on_attempt``)."""
        self.delivery_attempts.labels(receiver, outcome).inc()
        self.delivery_seconds.labels(receiver).observe(seconds)

    def track_outbox(self, depth: Callable[[], Mapping[str, int]], receivers: list[str]) -> None:
        """Read the outbox depth at each scrape (``webhook.Deliverer.depth``)."""
        for receiver in receivers:
            self.outbox_depth.labels(receiver).set_function(_depth_of(depth, receiver))


def _depth_of(depth: Callable[[], Mapping[str, int]], receiver: str) -> Callable[[], float]:
    return lambda: float(depth().get(receiver, 0))
