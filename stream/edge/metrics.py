"""Prometheus metrics of the worker itself (contracts section 8).

Each process makes its own registry; nothing is global. The devices' series are written by
``stream.edge.fleet_metrics``.
"""

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from stream.edge.webhook_http import package_version
from stream.fleet_view import FleetView

SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class WorkerMetrics:
    """The worker's own figures; attributes are prometheus-client metrics, used directly.

    ``records``, ``messages`` (counters) · ``repairs{signal}`` · ``dead_letters{reason}`` ·
    ``duplicates`` · ``minute_rows{kind}`` (``published``, ``corrected``) ·
    ``scorings{status}`` (device windows: ``scored``, ``not_enough_data``) · ``scoring_seconds``
    (histogram a batch) · ``decisions{type,cause}`` (``cause`` may be ``""``) ·
    ``watermark_lag_seconds{partition}`` and ``lag_records{partition}`` (gauges) ·
    ``deliveries{receiver,status}`` · ``delivery_attempts{receiver,outcome}`` ·
    ``delivery_seconds{receiver}`` (histogram) · ``decision_to_delivery_seconds`` (histogram) ·
    ``outbox_depth{receiver}`` (gauge) · ``errors{kind}``. With a ``view``, its size too.
    """

    def __init__(self, view: FleetView | None = None) -> None:
        self.registry = r = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=r)
        p = "rigcanary_worker_"
        if view is not None:
            Gauge(
                p + "view_devices", "Devices in the bounded fleet view.", registry=r
            ).set_function(lambda: len(view))
            Gauge(
                p + "view_refused", "Device rows that did not fit into the fleet view.", registry=r
            ).set_function(lambda: view.refused)
        self.records = Counter(p + "records", "Kafka records read.", registry=r)
        self.messages = Counter(p + "messages", "Telemetry messages used.", registry=r)
        self.duplicates = Counter(
            p + "duplicates", "Messages seen before, not counted again.", registry=r
        )
        self.repairs = Counter(
            p + "repairs", "Impossible sensor values set to null.", ["signal"], registry=r
        )
        self.dead_letters = Counter(
            p + "dead_letters", "Unusable messages filed.", ["reason"], registry=r
        )
        self.minute_rows = Counter(
            p + "minute_rows",
            "Minute rows, by whether they corrected an earlier one.",
            ["kind"],
            registry=r,
        )
        self.scorings = Counter(p + "scorings", "Device windows looked at.", ["status"], registry=r)
        self.scoring_seconds = Histogram(
            p + "scoring_seconds", "Time to score one batch.", buckets=SECONDS_BUCKETS, registry=r
        )
        self.decisions = Counter(p + "decisions", "Decisions made.", ["type", "cause"], registry=r)
        self.watermark_lag_seconds = Gauge(
            p + "watermark_lag_seconds",
            "Wall clock minus the partition's event time.",
            ["partition"],
            registry=r,
        )
        self.lag_records = Gauge(
            p + "lag_records", "Records in Kafka not read yet.", ["partition"], registry=r
        )
        self.deliveries = Counter(
            p + "deliveries", "Webhooks finished.", ["receiver", "status"], registry=r
        )
        self.delivery_attempts = Counter(
            p + "delivery_attempts", "Webhook requests made.", ["receiver", "outcome"], registry=r
        )
        self.delivery_seconds = Histogram(
            p + "delivery_seconds",
            "Time of one webhook request.",
            ["receiver"],
            buckets=SECONDS_BUCKETS,
            registry=r,
        )
        self.decision_to_delivery_seconds = Histogram(
            p + "decision_to_delivery_seconds",
            "Wall time from a decision's record to its 2xx.",
            buckets=(*SECONDS_BUCKETS, 60, 300, 3600),
            registry=r,
        )
        self.outbox_depth = Gauge(
            p + "outbox_depth", "Webhooks not delivered yet.", ["receiver"], registry=r
        )
        self.errors = Counter(p + "errors", "Failures of the worker itself.", ["kind"], registry=r)
        self.build_info = Gauge(
            "rigcanary_build_info",
            "1; what runs.",
            ["process", "version", "model_version"],
            registry=r,
        )
        self.set_model_version("")
        self.challenger_info = Gauge(
            p + "challenger_info",
            "1; the model that scores in the champion's shadow.",
            ["model_version"],
            registry=r,
        )
        self.drift = Gauge(
            p + "feature_drift_psi",
            "Population stability index of a feature: lately against training.",
            ["feature"],
            registry=r,
        )

    def set_model_version(self, model_version: str) -> None:
        """Say in ``rigcanary_build_info`` which model is served."""
        self.build_info.clear()
        self.build_info.labels("worker", package_version(), model_version).set(1)

    def set_challenger(self, model_version: str) -> None:
        """Say which model scores in the shadow, "" when none."""
        self.challenger_info.clear()
        if model_version:
            self.challenger_info.labels(model_version).set(1)

    def set_drift(self, psi: Mapping[str, float]) -> None:
        """Take the index of every feature."""
        for feature, value in psi.items():
            self.drift.labels(feature).set(value)

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
