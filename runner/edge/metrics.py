"""The runner's Prometheus metrics, in a registry of their own. Every label has a closed set."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from runner.job import JobState
from runner.migration import MigrationState

MIGRATION_SECONDS: Final = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """All counters of one runner."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        r = self.registry
        self.jobs = Gauge("rigcanary_runner_jobs", "Open jobs.", ["state"], registry=r)
        self.migrations_open = Gauge(
            "rigcanary_runner_migrations_open", "Migrations under way.", ["state"], registry=r
        )
        self.cordons = Gauge("rigcanary_runner_cordons", "Cards and nodes closed.", registry=r)
        self.migrations = Counter(
            "rigcanary_runner_migrations", "Migrations ended.", ["cause", "outcome"], registry=r
        )
        self.migration_seconds = Histogram(
            "rigcanary_runner_migration_seconds", "From request to completion, with a job.",
            buckets=MIGRATION_SECONDS, registry=r,
        )
        self.webhooks = Counter(
            "rigcanary_runner_webhooks", "Webhooks received.", ["type", "outcome"], registry=r
        )
        self.alerts = Counter(
            "rigcanary_runner_alerts", "Alerts received.", ["outcome"], registry=r
        )
        self.starts = Counter("rigcanary_runner_job_starts", "Starts of jobs.", registry=r)
        self.job_ends = Counter(
            "rigcanary_runner_job_ends", "Ends of a job's processes.", ["outcome"], registry=r
        )
        self.progress_lines = Counter(
            "rigcanary_runner_progress_lines", "Lines read from jobs.", ["outcome"], registry=r
        )
        self.requests = Counter(
            "rigcanary_runner_http_requests", "Requests answered.", ["status"], registry=r
        )
        self.errors = Counter(
            "rigcanary_runner_errors", "Rounds that failed and were repeated.", ["kind"], registry=r
        )
        try:
            number = version("rigcanary")
        except PackageNotFoundError:
            number = "unknown"
        Gauge(
            "rigcanary_build_info", "The version that runs.", ["version", "process"], registry=r
        ).labels(number, "runner").set(1)
        for state in JobState:
            self.jobs.labels(state)
        for migration_state in MigrationState:
            self.migrations_open.labels(migration_state)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
