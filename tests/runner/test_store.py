"""The database: what is kept, how it is bounded, what is refused."""

import json
import sqlite3
from pathlib import Path

import pytest

from contract.errors import RigcanaryError
from runner.edge.store import KEEP_WEBHOOK_IDS_MS, MAX_POINTS, MIGRATIONS, Store
from runner.fleet import Cordon
from runner.job import Job, JobSpec, JobState
from runner.migration import Migration, MigrationState, Step
from runner.placement import Place
from runner.progress import Point

SPEC = JobSpec("job", None, {"task": "chars"}, 2, "/tmp/x", ("a",), ("GPU-1",), ("b",))
JOB = Job(
    "job-1",
    SPEC,
    5,
    JobState.RUNNING,
    places=(Place("a", "GPU-1"), Place("b", None)),
    generation=3,
    step=7,
    loss=0.25,
)
MIGRATION = Migration(
    "mig-1",
    "e",
    "a",
    None,
    "node_lost",
    "webhook",
    9,
    job="job-1",
    generation=3,
    from_places=JOB.places,
    steps=(Step("cordon", "done", 9, "a"),),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runner.db"


def test_jobs_and_migrations_come_back_as_they_were(path: Path) -> None:
    store = Store(path)
    with store.transaction():
        store.save_job(JOB)
        store.save_migration(MIGRATION)
    store.close()
    store = Store(path)
    assert store.open_jobs() == store.jobs(10) == [JOB]
    assert store.open_migrations() == store.migrations(10) == [MIGRATION]
    assert store.migrations_of("a", None, "e") == [MIGRATION]
    with store.transaction():
        store.save_job(JOB.to(JobState.COMPLETED))
        store.save_migration(Migration(**{**vars(MIGRATION), "state": MigrationState.COMPLETED}))
    assert store.open_jobs() == store.open_migrations() == []
    store.close()


def test_an_error_rolls_back(path: Path) -> None:
    store = Store(path)

    def half() -> None:
        with store.transaction():
            assert store.saw_webhook("w", "test.ping", 1)
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert store.saw_webhook("w", "test.ping", 1)
    store.close()


def test_one_migration_an_episode_and_job(path: Path) -> None:
    store = Store(path)
    store.save_migration(MIGRATION)
    with pytest.raises(sqlite3.IntegrityError):
        store.save_migration(Migration(**{**vars(MIGRATION), "id": "mig-2"}))
    store.close()


def test_identities_are_forgotten_after_the_senders_patience(path: Path) -> None:
    store = Store(path)
    assert store.saw_webhook("w", "x", 0)
    assert not store.saw_webhook("w", "x", KEEP_WEBHOOK_IDS_MS)
    assert store.saw_webhook("w", "x", KEEP_WEBHOOK_IDS_MS + 1)
    assert store.saw_alert("k", 0)
    assert not store.saw_alert("k", 1)
    store.close()


def test_cordons_have_reasons(path: Path) -> None:
    store = Store(path)
    assert store.cordon(Cordon("a", "d", "quarantine", "why", 1), 100)
    assert store.cordon(Cordon("a", "d", "episode:e", "predicted", 2), 100)
    assert store.cordon(Cordon("a", None, "episode:e", "node_lost", 3), None)
    assert store.uncordon("a", "d", source="episode:e") == 1
    assert [c.reason for c in store.cordons()] == ["why", "node_lost"]
    assert store.release_sent("a", "d", 99) == 0, "older than the cordon"
    assert store.release_sent("a", "d", 100) == 1
    assert not store.cordon(Cordon("a", "d", "quarantine", "late", 4), 100)
    assert store.uncordon_node("a") == 1
    assert store.cordons() == []
    store.close()


def test_progress_is_bounded(path: Path) -> None:
    store = Store(path)
    total = MAX_POINTS * 3
    for start in range(0, total, 500):
        points = [Point(i, i, 1.0, "a", None, 1 + i // 5000) for i in range(start, start + 500)]
        with store.transaction():
            store.add_progress("job-1", points)
    kept = store.progress("job-1")
    assert MAX_POINTS // 2 <= len(kept) <= MAX_POINTS
    steps = [point.step for point in kept]
    assert steps == sorted(steps)
    assert {0, 4999, 5000, 9999, 10000, total - 1} <= set(steps)
    store.close()


def test_what_is_no_database_of_ours(path: Path) -> None:
    path.write_bytes(b"something else " * 100)
    with pytest.raises(RigcanaryError, match="cannot use it"):
        Store(path)


def test_a_newer_schema_is_refused(path: Path) -> None:
    store = Store(path)
    store.close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(RigcanaryError, match="newer rigcanary"):
        Store(path)


def test_a_database_of_the_first_schema_is_taken_over(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript(f"BEGIN;{MIGRATIONS[0]}PRAGMA user_version=1;COMMIT;")
    spec = {
        "name": "job", "command": ["true"], "trainer": None, "world_size": 1,
        "checkpoint_dir": "/tmp/x", "nodes": [], "devices": [], "prefer": ["b"],
    }  # fmt: skip
    old = {
        "id": "job-1", "spec": spec, "created_ms": 5, "state": "running", "cancelled": False,
        "places": [{"node": "a", "device": None}], "generation": 3, "failures": 0,
        "not_before_ms": 0, "started_ms": 6, "launched_ms": 7, "ended_ms": None, "step": 7,
        "loss": 0.25, "progress_ms": 8, "best_step": 7, "reported_generation": 3,
        "progress_offset": 0, "error": None, "exit_code": None,
    }  # fmt: skip
    database.execute("INSERT INTO jobs VALUES ('job-1', 5, 'running', ?)", (json.dumps(old),))
    database.execute("INSERT INTO webhooks VALUES ('w', 'test.ping', 1)")
    database.commit()
    database.close()
    store = Store(path)
    (job,) = store.open_jobs()
    assert (job.step, job.spec.fewest, job.spec.when_full) == (7, 1, "stay")
    assert job.account.kept_ms == 0
    assert not store.saw_webhook("w", "test.ping", 2), "ids are remembered over the upgrade"
    store.save_job(job)
    assert store.open_jobs() == [job]
    store.close()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    plan = database.execute("EXPLAIN QUERY PLAN DELETE FROM webhooks WHERE received_ms < 1")
    assert "webhooks_by_age" in str(plan.fetchall())
    database.close()


def test_an_upgrade_that_is_cut_off_is_done_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(path).close()
    broken = (*MIGRATIONS, "CREATE TABLE half (x); THIS IS NO SQL;")
    monkeypatch.setattr("runner.edge.store.MIGRATIONS", broken)
    with pytest.raises(RigcanaryError, match="cannot use it"):
        Store(path)
    monkeypatch.setattr("runner.edge.store.MIGRATIONS", (*MIGRATIONS, "CREATE TABLE half (x);"))
    Store(path).close()
