"""The engine over a world that outlives it: killed between any two steps, and at random.

Processes are hand-written fakes that behave as under a guard: they are asked to end when the
runner dies, write a checkpoint when asked, and lose what came after it when killed.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runner.edge.engine import Engine
from runner.edge.intake import Intake
from runner.edge.metrics import Metrics
from runner.edge.store import Store
from runner.job import ENDED, MOVES, Job, JobSpec, JobState
from runner.launchers.base import Exit, Launch
from runner.migration import MigrationState
from runner.placement import Place
from runner.settings import RunnerSettings

NODES = {"rig1": ["a", "b"], "rig2": ["c"], "rig3": ["d"]}
ROUND_MS = 500


class Killed(BaseException):
    """kill -9 of the runner, at a point of our choice."""


@dataclass
class Proc:
    """One process of the world; ``end_in``: rounds until an end that was asked for."""

    launch: Launch
    step: int
    asked: bool = False
    end_in: int = 2
    exit: Exit | None = None


@dataclass
class World:
    """What is there whether a runner lives or not."""

    root: Path
    outlives_runner: bool = False
    now_ms: int = 1_000_000
    fuse: int = -1
    events: int = 0
    procs: dict[tuple[str, int, int], Proc] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    steps: dict[str, list[int]] = field(default_factory=dict)
    closed: set[Place] = field(default_factory=set)

    def event(self) -> None:
        """A point at which the runner may be killed."""
        self.events += 1
        if self.events == self.fuse:
            raise Killed

    def living(self, job_id: str | None = None) -> list[Proc]:
        return [
            p for p in self.procs.values() if p.exit is None and job_id in {None, p.launch.job_id}
        ]

    def start(self, launch: Launch) -> None:
        before = [p for p in self.living(launch.job_id) if p.launch.rank == launch.rank]
        older = [p for p in self.living(launch.job_id) if p.launch.generation < launch.generation]
        assert not before, "a process runs twice"
        assert not older, "a start overlaps with an earlier one"
        assert all(p.launch.place != launch.place for p in self.living()), "a card taken twice"
        assert launch.place not in self.closed, "started on a cordoned card"
        launch.job_dir.mkdir(parents=True, exist_ok=True)
        key = (launch.job_id, launch.generation, launch.rank)
        self.procs[key] = Proc(launch, self.checkpoints.get(launch.job_id, 0))

    def kill(self, proc: Proc) -> None:
        if proc.exit is None:
            proc.exit = Exit(-9, asked=True)

    def runner_died(self) -> None:
        """Every guard reads the end of its pipe and asks its process to end."""
        if self.outlives_runner:
            return
        for proc in self.living():
            proc.asked = True

    def go_on(self) -> None:
        """One round of everybody's time."""
        self.now_ms += ROUND_MS
        for proc in self.living():
            job_id = proc.launch.job_id
            if proc.asked:
                proc.end_in -= 1
                if proc.end_in <= 0:
                    if proc.launch.rank == 0:
                        self.checkpoints[job_id] = proc.step
                    proc.exit = Exit(0, asked=True)
                continue
            proc.step += 1
            if proc.launch.rank == 0:
                self.steps.setdefault(job_id, []).append(proc.step)
                with proc.launch.progress_file.open("a") as file:
                    file.write(json.dumps({"step": proc.step, "loss": 1.0}) + "\n")


class FakeRun:
    def __init__(self, world: World, key: tuple[str, int, int]) -> None:
        self._world, self._key = world, key

    def poll(self) -> Exit | None:
        proc = self._world.procs.get(self._key)
        return Exit(None, asked=True) if proc is None else proc.exit

    def stop(self) -> None:
        self._world.event()
        if self._key in self._world.procs:
            self._world.procs[self._key].asked = True

    def kill(self) -> None:
        self._world.event()
        if self._key in self._world.procs:
            self._world.kill(self._world.procs[self._key])


class FakeLauncher:
    def __init__(self, world: World) -> None:
        self._world = world
        self.outlives_runner = world.outlives_runner

    def start(self, launch: Launch) -> FakeRun:
        self._world.event()
        self._world.start(launch)
        self._world.event()
        return FakeRun(self._world, (launch.job_id, launch.generation, launch.rank))

    def recover(self, job_dir: Path, generation: int, rank: int) -> FakeRun:
        return FakeRun(self._world, (job_dir.name, generation, rank))

    def log_text(self, job_dir: Path, rank: int, limit_bytes: int) -> str:
        return ""


class FusedStore(Store):
    """Dies before a transaction, before its commit, or right after it."""

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path)
        self._db.execute("PRAGMA synchronous=OFF")  # the machine stays up
        self._world = world

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._world.event()
        with super().transaction():
            yield
            self._world.event()
        self._world.event()

    def save_job(self, job: Job) -> None:
        """Only what the table has; several moves may lie between two records."""
        before = self.job(job.id)
        assert before is None or job.state in reachable(before.state), (before.state, job.state)
        super().save_job(job)


def reachable(state: JobState) -> set[JobState]:
    found, new = {state}, {state}
    while new:
        new = {after for s in new for after in MOVES[s]} - found
        found |= new
    return found


class Lab:
    """A runner over the world, which may die and come back."""

    def __init__(self, root: Path, *, outlives_runner: bool = False) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.world = World(root, outlives_runner)
        self.settings = RunnerSettings.model_validate(
            {
                "state_dir": root,
                "settle_seconds": 0,
                "checkpoint_grace_seconds": 5,
                "nodes": [{"name": n, "devices": d} for n, d in NODES.items()],
            }
        )
        self.open()

    def open(self) -> None:
        self.store = FusedStore(self.settings.state_dir / "runner.db", self.world)
        launcher = FakeLauncher(self.world)
        self.engine = Engine(
            self.settings, self.store, launcher, Metrics(), lambda: self.world.now_ms, seed=1
        )
        self.intake = Intake(self.engine)
        self.see()

    def see(self) -> None:
        self.world.closed = {
            Place(node, card)
            for node, cards in NODES.items()
            for card in cards
            for c in self.store.cordons()
            if c.node == node and c.device in {None, card}
        }

    def crash(self) -> None:
        self.store.close()
        self.world.runner_died()
        self.world.fuse = -1
        self.open()

    def submit(self, job_id: str, **spec: Any) -> None:
        job = JobSpec(job_id, ("train",), None, spec.pop("world_size", 1), f"/c/{job_id}", **spec)
        self.engine.submit(Job(job_id, job, self.world.now_ms))

    def tick(self) -> None:
        self.see()
        self.engine.tick()
        self.world.go_on()

    def webhook(self, kind: str, webhook_id: str, **data: Any) -> Any:
        sent = "2026-01-01T00:00:00Z"
        body = {"type": kind, "timestamp": sent, "data": data}
        reply = self.intake.webhook(webhook_id, json.dumps(body).encode())
        self.see()
        return reply


def sure(lab: Lab, *call: Any, **data: Any) -> None:
    """As a sender does: again until it is answered."""
    try:
        lab.webhook(*call, **data)
    except Killed:
        lab.crash()
        lab.webhook(*call, **data)


def ticks(lab: Lab, count: int) -> None:
    for _ in range(count):
        try:
            lab.tick()
        except Killed:
            lab.crash()


def play(root: Path, story: str, fuse: int, *, outlives_runner: bool = False) -> Lab:
    """One job on rig1/a that must leave; the runner dies at event ``fuse`` (0: never)."""
    lab = Lab(root, outlives_runner=outlives_runner)
    lab.submit("job-1", prefer=("a",))
    ticks(lab, 4)
    lab.world.events, lab.world.fuse = 0, fuse or -1
    card = {"site": "lab", "node": "rig1", "device": "a", "episode_id": "e"}
    if story == "by hand":
        sure(lab, "device.quarantined", "w1", **card, by="kim")
    else:
        cause = "lost" if story == "lost" else "predicted"
        sure(lab, "migration.requested", "w1", **card, cause=cause)
    if story == "withdrawn":
        ticks(lab, 1)
        sure(lab, "migration.withdrawn", "w2", **card)
    ticks(lab, 16)
    events, lab.world.fuse = lab.world.events, -1
    ticks(lab, 10)  # time to come back from a late death
    lab.world.events = events
    return lab


@pytest.mark.slow
@pytest.mark.timeout(600)  # some 40 lives of a runner, on a machine that may be busy
@pytest.mark.parametrize("outlives", [False, True], ids=["under guard", "outlives the runner"])
@pytest.mark.parametrize("story", ["predicted", "lost", "by hand", "withdrawn"])
def test_killed_between_any_two_steps(story: str, outlives: bool, tmp_path: Path) -> None:
    events = play(tmp_path / "whole", story, 0, outlives_runner=outlives).world.events
    assert events > 10
    for fuse in range(events + 1):
        lab = play(tmp_path / f"at-{fuse}", story, fuse, outlives_runner=outlives)
        (migration,) = lab.store.migrations(10)
        (job,) = lab.store.jobs(10)
        where = f"killed at event {fuse} of {events}"
        if story == "withdrawn":
            # Stopped, unless the job ran elsewhere already when the withdrawal came.
            assert migration.done, where
            home = migration.state is MigrationState.WITHDRAWN
            assert home == (not lab.world.closed), where
        else:
            assert migration.state is MigrationState.COMPLETED, (where, migration)
            assert lab.world.closed == {Place("rig1", "a")}, where
            assert job.places[0] != Place("rig1", "a"), where
        assert job.state is JobState.RUNNING, where
        assert len(lab.world.living("job-1")) == 1, where
        steps = lab.world.steps["job-1"]
        if story != "lost":
            assert steps == list(range(1, len(steps) + 1)), f"{where}: every step once"
        assert lab.engine.jobs["job-1"].step in steps[-2:], where
        lab.store.close()


def test_withdrawn_while_it_ends_it_starts_where_it_was(tmp_path: Path) -> None:
    lab = play(tmp_path, "withdrawn", 0)
    (job,), (migration,) = lab.store.jobs(10), lab.store.migrations(10)
    assert migration.state is MigrationState.WITHDRAWN
    assert (job.places, job.generation) == ((Place("rig1", "a"),), 2)
    lab.store.close()


def test_a_world_shrinks_by_its_rule_and_moves_one_rank(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.submit("job-1", world_size=4, min_world_size=2)
    ticks(lab, 4)
    assert len(lab.world.living("job-1")) == 4
    card = {"site": "lab", "node": "rig1", "device": "a", "episode_id": "e"}
    sure(lab, "migration.requested", "w1", **card, cause="predicted")
    ticks(lab, 12)
    living = lab.world.living("job-1")
    assert {p.launch.place.device for p in living} == {"b", "c", "d"}
    assert {p.launch.environment["RIGCANARY_WORLD_SIZE"] for p in living} == {"3"}
    (migration,) = lab.store.migrations(10)
    assert migration.state is MigrationState.COMPLETED
    lab.crash()  # and the next runner looks for three processes, not four
    ticks(lab, 6)
    assert len(lab.world.living("job-1")) == 3
    lab.store.close()


class RunnerLife(RuleBasedStateMachine):
    """Anything, in any order: the world's own asserts are the property."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="rigcanary-life-"))
        self.lab = Lab(self.root)
        self.jobs = 0
        self.sent = 0

    @precondition(lambda self: self.jobs < 4)
    @rule(size=st.integers(1, 3), fewest=st.integers(1, 3), queue=st.booleans())
    def submit(self, size: int, fewest: int, queue: bool) -> None:
        self.jobs += 1
        rule_ = "queue" if queue else "stay"
        self.lab.submit(
            f"job-{self.jobs}",
            world_size=size,
            min_world_size=min(size, fewest),
            when_full=rule_,
        )

    @rule(
        kind=st.sampled_from(["migration.requested", "migration.withdrawn", "device.quarantined",
                              "device.released"]),
        node=st.sampled_from(sorted(NODES)),
        card=st.integers(0, 1),
        episode=st.integers(1, 3),
        cause=st.sampled_from(["predicted", "lost", "node_lost"]),
        again=st.booleans(),
    )  # fmt: skip
    def webhook(
        self, kind: str, node: str, card: int, episode: int, cause: str, again: bool
    ) -> None:
        self.sent += 1
        whole = cause == "node_lost" and kind == "migration.requested"
        device = None if whole else NODES[node][card % len(NODES[node])]
        data: dict[str, Any] = {
            "site": "lab", "node": node, "device": device, "episode_id": f"e{episode}",
            "cause": cause, "by": "kim",
        }  # fmt: skip
        before = len(self.lab.store.migrations(1000))
        self.lab.webhook(kind, f"w{self.sent}", **data)
        if again:
            count = len(self.lab.store.migrations(1000))
            assert self.lab.webhook(kind, f"w{self.sent}", **data).status == "duplicate"
            assert len(self.lab.store.migrations(1000)) == count >= before

    @rule(node=st.sampled_from(sorted(NODES)))
    def release(self, node: str) -> None:
        self.lab.intake.release(node, None)
        self.lab.see()

    @rule(job=st.integers(1, 4))
    def cancel(self, job: int) -> None:
        found = self.lab.store.job(f"job-{job}")
        if found is not None:
            self.lab.engine.cancel(found)

    @rule(code=st.sampled_from([0, 1, -9]), which=st.integers(0, 5))
    def process_ends(self, code: int, which: int) -> None:
        living = self.lab.world.living()
        if living:
            living[which % len(living)].exit = Exit(code, asked=False)

    @rule(count=st.integers(1, 6))
    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.lab.tick()

    @rule(fuse=st.integers(1, 12))
    def killed(self, fuse: int) -> None:
        self.lab.world.events, self.lab.world.fuse = 0, fuse
        with suppress(Killed):
            for _ in range(3):
                self.lab.tick()
        self.lab.crash()

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not hasattr(self, "lab"):
            return
        engine = self.lab.engine
        for proc in self.lab.world.living():
            assert proc.launch.job_id in engine.jobs, "a process whose job has ended"
        for migration in engine.migrations.values():
            assert not migration.done

    def teardown(self) -> None:
        if not hasattr(self, "lab"):
            return
        for node in NODES:
            self.lab.intake.release(node, None)
        for _ in range(160):
            self.lab.tick()
        for migration in self.lab.store.open_migrations():
            raise AssertionError(f"never done: {migration}")
        for job in self.lab.store.jobs(10):
            settled = job.state in ENDED or job.state in {JobState.RUNNING, JobState.QUEUED}
            assert settled, f"stuck: {job}"
        self.lab.store.close()
        shutil.rmtree(self.root)


TestRunnerLife = pytest.mark.timeout(600)(pytest.mark.slow(RunnerLife.TestCase))
TestRunnerLife.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
