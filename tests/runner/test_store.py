"""The database: what is kept, how it is bounded, what is refused."""

import sqlite3
from pathlib import Path

import pytest

from contract.errors import RigcanaryError
from runner.edge.store import KEEP_WEBHOOK_IDS_MS, MAX_POINTS, Store
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
