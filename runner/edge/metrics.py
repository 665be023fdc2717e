"""The runner's Prometheus metrics, in a registry of their own.

Every label has a closed set, but for those of open jobs, which go with them.
"""

from collections import Counter as TallyOf
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from runner.fleet import Cordon
from runner.job import Job, JobState
from runner.migration import DONE, Migration, MigrationState

MIGRATION_SECONDS: Final = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

MAX_JOBS: Final = 100
"""Open jobs that have series of their own; the newest, when there are more."""


class Metrics:
    """All counters of one runner."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        r = self.registry
        self.jobs = Gauge("rigcanary_runner_jobs", "Open jobs.", ["state"], registry=r)
        each = ["job", "name"]
        self._of_job = {
            "step": Gauge("rigcanary_runner_job_step", "Newest step.", each, registry=r),
            "loss": Gauge("rigcanary_runner_job_loss", "Newest loss.", each, registry=r),
            "goodput": Gauge(
                "rigcanary_runner_job_goodput_ratio",
                "Share of the time since its start that went into steps which were kept.",
                each,
                registry=r,
            ),
            "speed": Gauge(
                "rigcanary_runner_job_steps_per_second",
                "Throughput of its start.",
                each,
                registry=r,
            ),
        }
        self.migrations_open = Gauge(
            "rigcanary_runner_migrations_open", "Migrations under way.", ["state"], registry=r
        )
        self.cordons = Gauge("rigcanary_runner_cordons", "Cards and nodes closed.", registry=r)
        self.migrations = Counter(
            "rigcanary_runner_migrations", "Migrations ended.", ["cause", "outcome"], registry=r
        )
        self.migration_seconds = Histogram(
            "rigcanary_runner_migration_seconds",
            "From request to completion, with a job.",
            buckets=MIGRATION_SECONDS,
            registry=r,
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
        self.measure((), (), (), 0)

    def measure(
        self,
        jobs: Iterable[Job],
        migrations: Iterable[Migration],
        cordons: Iterable[Cordon],
        now_ms: int,
    ) -> None:
        """Set the gauges; a job that has ended loses its series."""
        jobs = tuple(jobs)
        self._measure_jobs(jobs, now_ms)
        in_state = TallyOf(job.state for job in jobs)
        for state in JobState:
            self.jobs.labels(state).set(in_state[state])
        under_way = TallyOf(m.state for m in migrations)
        for migration_state in MigrationState:
            if migration_state not in DONE:
                self.migrations_open.labels(migration_state).set(under_way[migration_state])
        self.cordons.set(len({(c.node, c.device) for c in cordons}))

    def _measure_jobs(self, jobs: Iterable[Job], now_ms: int) -> None:
        going = [job for job in jobs if job.ended_ms is None]
        for gauge in self._of_job.values():
            gauge.clear()
        for job in going[-MAX_JOBS:]:
            values = {
                "step": job.step,
                "loss": job.loss,
                "goodput": job.account.goodput(job.started_ms, now_ms),
                "speed": job.account.steps_per_second(job.generation),
            }
            for name, value in values.items():
                if value is not None:
                    self._of_job[name].labels(job.id, job.spec.name).set(value)

    def migration_ended(self, migration: Migration) -> None:
        """Count one that is done."""
        self.migrations.labels(migration.cause, migration.state).inc()
        if migration.job and migration.completed_ms is not None:
            seconds = max(migration.completed_ms - migration.requested_ms, 0) / 1000
            self.migration_seconds.observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
