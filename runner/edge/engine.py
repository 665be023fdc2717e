"""Drives jobs and migrations: polls processes, reads progress, carries plans on, starts jobs.

Everything here runs in one thread (the one that owns the store), in rounds that never block.
The database holds what must be true after kill -9: a job is written as ``starting`` with its
new generation before a process is made, and taken up from there by the next runner.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from runner import migration as plan
from runner.edge.commands import launches
from runner.edge.metrics import Metrics
from runner.edge.store import Store
from runner.edge.tail import read_progress
from runner.ending import after_exit, kind_of, last_line
from runner.fleet import Cordon, find_places, healthy_places, node_views, reserved_places
from runner.job import ACTIVE, ENDED, Job, JobState
from runner.launchers.base import Launcher, NotStarted, Run
from runner.migration import Command, Facts, Limits, Migration, MigrationState
from runner.placement import NodeView, Place
from runner.progress import Point
from runner.settings import RunnerSettings

log = logging.getLogger("rigcanary.runner")
PROGRESS_FLUSH_MS: Final = 1000
"""Progress alone reaches the disk this often; every other change at once."""
NO_PLACE: Final = "no free place: every card it may use is taken or cordoned"
LAST_BYTES: Final = 2000
LOG_BYTES: Final = 64 * 1024
SHUTDOWN_POLL_SECONDS: Final = 0.05


class Engine:
    """The open jobs and migrations of one runner."""

    def __init__(
        self,
        settings: RunnerSettings,
        store: Store,
        launcher: Launcher,
        metrics: Metrics,
        clock_ms: Callable[[], int],
        seed: int | None = None,
    ) -> None:
        self._settings = settings
        self.store = store
        self._launcher = launcher
        self.metrics = metrics
        self.clock_ms = clock_ms
        self._random = random.Random(seed)
        self._limits = Limits(
            round(settings.checkpoint_grace_seconds * 1000), round(settings.confirm_seconds * 1000)
        )
        self._runs: dict[str, list[Run]] = {}
        self._points: dict[str, list[Point]] = {}
        self._dirty: set[str] = set()
        self._points_flushed_ms = 0
        self.cordons: list[Cordon] = store.cordons()
        self.jobs: dict[str, Job] = {job.id: job for job in store.open_jobs()}
        self.migrations: dict[str, Migration] = {m.id: m for m in store.open_migrations()}
        for job in list(self.jobs.values()):
            if job.state in ACTIVE:
                self._take_up(job)

    def job_dir(self, job_id: str) -> Path:
        return self._settings.state_dir.absolute() / "jobs" / job_id

    # What the outside asks

    def submit(self, job: Job) -> Job:
        """Queue a job; it is on disk when this returns."""
        with self.store.transaction():
            self.store.save_job(job)
            for name in job.spec.nodes:
                self.store.learn_node(name, job.created_ms)
        self.jobs[job.id] = job
        return job

    def cancel(self, job: Job) -> Job:
        """Stop a job for good; one that has ended stays as it is."""
        job = self.jobs.get(job.id, job)
        if job.state in ENDED:
            return job
        job = replace(job, cancelled=True)
        if job.state is JobState.QUEUED:
            job = job.to(JobState.CANCELLED, ended_ms=self.clock_ms())
        elif job.state is not JobState.STOPPING:
            job = job.to(JobState.STOPPING)
        self._put(job)
        self._flush()
        for run in self._runs.get(job.id, []):
            run.stop()
        return job

    def nodes(self) -> list[NodeView]:
        """Every node that is known, with its cordons."""
        listed = {node.name: node.devices for node in self._settings.nodes}
        return node_views(listed, self.store.learned_nodes(), self.cordons)

    def jobs_on(self, node: str, device: str | None) -> list[Job]:
        """The jobs that have a process on that card or node."""
        return [
            j
            for j in self.jobs.values()
            if j.state in ACTIVE and not j.cancelled and j.sits_on(node, device)
        ]

    def adopt(self, migration: Migration) -> None:
        """Take a migration that was just stored into the rounds, or out of them when done."""
        if migration.done:
            self.migrations.pop(migration.id, None)
            self.metrics.migration_ended(migration)
            self._send_home(migration)
        else:
            self.migrations[migration.id] = migration

    def _send_home(self, migration: Migration) -> None:
        """A job whose move was withdrawn while it was ending starts where it was, if it can."""
        job = self.jobs.get(migration.job or "")
        touched = job is not None and job.state in {JobState.STOPPING, JobState.QUEUED}
        if job is not None and touched and migration.state is MigrationState.WITHDRAWN:
            self._put(replace(job, home=migration.from_places))

    def progress(self, job_id: str) -> list[Point]:
        """All points that are kept of a job, oldest first."""
        return [*self.store.progress(job_id), *self._points.get(job_id, [])]

    def log(self, job_id: str, rank: int) -> str:
        """The end of a process's output, ``LOG_BYTES`` at most."""
        return self._launcher.log_text(self.job_dir(job_id), rank, LOG_BYTES)

    # Rounds

    def tick(self) -> None:
        """One round. An OSError or sqlite3.Error leaves it to the next round."""
        for job_id in list(self._runs):
            self._poll(self.jobs[job_id])
        for migration in list(self.migrations.values()):
            self._advance(migration)
        self._flush()
        refused: set[object] = set()
        for job in sorted(self.jobs.values(), key=lambda j: (j.created_ms, j.id)):
            if job.state is JobState.QUEUED and job.not_before_ms <= self.clock_ms():
                wish = (job.spec.nodes, job.spec.devices, job.spec.fewest)
                # What found no place this round, the next one like it will not find either.
                if wish in refused or not self._start(job):
                    refused.add(wish)
                    if job.error != NO_PLACE:
                        self._put(replace(job, error=NO_PLACE))
        self._flush()
        self.metrics.measure(
            self.jobs.values(), self.migrations.values(), self.cordons, self.clock_ms()
        )

    def shutdown(self) -> None:
        """Ask every process for a checkpoint and wait, bounded, until all are gone.

        Those of a launcher whose processes outlive the runner go on. The jobs stay open in
        the database: the next runner goes on with them.
        """
        outlives = self._launcher.outlives_runner
        for runs in self._runs.values() if not outlives else ():
            for run in runs:
                run.stop()
        deadline = time.monotonic() + self._settings.checkpoint_grace_seconds + 10
        while time.monotonic() < deadline and not outlives:
            if all(run.poll() is not None for runs in self._runs.values() for run in runs):
                break
            time.sleep(SHUTDOWN_POLL_SECONDS)
        for job_id in list(self._runs):
            self._read_progress(self.jobs[job_id], to_the_end=True)
        self._flush(everything=True)

    def _take_up(self, job: Job) -> None:
        """A job of an earlier runner: its processes are ending, and it starts again then.

        Or they go on, where they outlive a runner; what it was asked for is asked again.
        """
        self._runs[job.id] = [
            self._launcher.recover(self.job_dir(job.id), job.generation, rank)
            for rank in range(len(job.places))
        ]
        if job.state is JobState.STOPPING:
            for run in self._runs[job.id]:
                run.stop()
        elif not self._launcher.outlives_runner:
            self._put(job.to(JobState.STOPPING))

    def _poll(self, job: Job) -> None:
        job = self._read_progress(job)
        now = self.clock_ms()
        if job.state is JobState.STARTING and job.going(now, self._settle_ms()):
            job = job.to(JobState.RUNNING)
            self._put(job)
        runs = self._runs[job.id]
        exits = [run.poll() for run in runs]
        ended = [e for e in exits if e is not None]
        if len(ended) < len(runs):
            if any(e.returncode != 0 for e in ended):
                for run in runs:  # one rank failed: the others cannot go on without it
                    run.stop()
            return
        job = self._read_progress(job, to_the_end=True)
        del self._runs[job.id]
        self.metrics.job_ends.labels(kind_of(job, ended)).inc()
        job = after_exit(
            job,
            ended,
            now,
            jitter=self._random.random(),
            last_output=last_line(self._launcher.log_text(self.job_dir(job.id), 0, LAST_BYTES)),
        )
        log.info(
            "job %s (%s): %s%s",
            job.id,
            job.spec.name,
            job.state,
            f": {job.error}" if job.error else "",
        )
        self._put(job)

    def _read_progress(self, job: Job, *, to_the_end: bool = False) -> Job:
        points, offset, bad = read_progress(job, self.job_dir(job.id), self.clock_ms(), to_the_end)
        self.metrics.progress_lines.labels("bad").inc(bad)
        if offset == job.progress_offset:
            return job
        job = replace(job, progress_offset=offset)
        if points:
            self.metrics.progress_lines.labels("ok").inc(len(points))
            self._points.setdefault(job.id, []).extend(points)
            last = points[-1]
            job = replace(
                job,
                step=last.step,
                loss=last.loss,
                progress_ms=last.at_ms,
                best_step=max(job.best_step, last.step),
                reported_generation=job.generation,
                failures=0 if last.step > job.best_step else job.failures,
                account=job.account.add(points),
            )
        self.jobs[job.id] = job
        return job

    def _advance(self, migration: Migration) -> None:
        job = self.jobs.get(migration.job) if migration.job else None
        if job is None and migration.job:
            job = self.store.job(migration.job)
        now = self.clock_ms()
        facts = None if job is None else self._facts(migration, job, now)
        changed, command = plan.advance(migration, facts, self._limits, now)
        if job is not None and command is not None and not job.cancelled:
            if job.state in {JobState.STARTING, JobState.RUNNING}:
                self._put(job.to(JobState.STOPPING))
            for run in self._runs.get(job.id, []):
                if command is Command.KILL:
                    run.kill()
                else:
                    run.stop()
        if changed != migration:
            log.info("migration %s (job %s): %s", changed.id, changed.job, changed.state)
            self._dirty.add(changed.id)
            self.migrations[changed.id] = changed

    def _facts(self, migration: Migration, job: Job, now: int) -> Facts:
        alive = job.id in self._runs  # until its end has been judged
        return Facts(
            now_ms=now,
            job_state=job.state,
            alive=alive,
            on_device=job.sits_on(migration.node, migration.device),
            generation=job.generation,
            places=job.places,
            free_places=self._find_places(job, healthy_places(job, migration)),
            clean=job.exit_code == 0,
            progressed=job.going(now, self._settle_ms()),
            queues=job.spec.when_full == "queue",
        )

    def _find_places(self, job: Job, first: Sequence[str]) -> tuple[Place, ...] | None:
        return find_places(job, self.nodes(), self.jobs.values(), self.migrations.values(), first)

    def _start(self, job: Job) -> bool:
        """Start a queued job; False when there is no place for it."""
        home = [str(place) for place in job.home]
        reserved = reserved_places(job, self.migrations.values())
        places = self._find_places(job, [*home, *reserved])
        if places is None:
            return False
        now = self.clock_ms()
        job = job.to(
            JobState.STARTING,
            places=places,
            home=(),
            generation=job.generation + 1,
            progress_offset=0,
            started_ms=job.started_ms or now,
            launched_ms=now,
            error=None,
            exit_code=None,
        )
        self._put(job)
        self._flush()
        self.metrics.starts.inc()
        where = ", ".join(str(p) for p in places)
        log.info("job %s (%s): start %d on %s", job.id, job.spec.name, job.generation, where)
        runs: list[Run] = []
        for launch in launches(job, self.job_dir(job.id)):
            try:
                runs.append(self._launcher.start(launch))
            except OSError as error:
                log.warning("job %s: cannot start a process: %s", job.id, error)
                for run in runs:
                    run.kill()
                runs.append(NotStarted(f"cannot start a process: {error}"))
                break
        self._runs[job.id] = runs
        return True

    # Memory and disk

    def _settle_ms(self) -> int:
        return round(self._settings.settle_seconds * 1000)

    def _put(self, job: Job) -> None:
        self.jobs[job.id] = job
        self._dirty.add(job.id)

    def _flush(self, *, everything: bool = False) -> None:
        now = self.clock_ms()
        due = self._points and (everything or now - self._points_flushed_ms >= PROGRESS_FLUSH_MS)
        if not self._dirty and not due:
            return
        with self.store.transaction():
            for key in self._dirty | set(self._points):
                if key in self.migrations:
                    self.store.save_migration(self.migrations[key])
                elif key in self.jobs:
                    self.store.save_job(self.jobs[key])
            for job_id, points in self._points.items():
                self.store.add_progress(job_id, points)
        self._points.clear()
        self._dirty.clear()
        self._points_flushed_ms = now
        for job in [j for j in self.jobs.values() if j.state in ENDED]:
            del self.jobs[job.id]
        for migration in [m for m in self.migrations.values() if m.done]:
            self.adopt(migration)
