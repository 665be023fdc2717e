"""The runner's memory: SQLite in WAL mode. One connection, used by one thread.

What is committed survives kill -9 (and, ``synchronous=FULL``, a power cut as far as the disk
keeps its word).
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from contract.errors import RigcanaryError
from runner.edge import records
from runner.fleet import Cordon
from runner.job import ENDED, Job
from runner.migration import DONE, Migration
from runner.progress import Point, thin

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE jobs (id TEXT PRIMARY KEY, created_ms INTEGER NOT NULL, state TEXT NOT NULL,
                       body TEXT NOT NULL);
    CREATE INDEX jobs_by_state ON jobs (state);
    CREATE TABLE migrations (id TEXT PRIMARY KEY, requested_ms INTEGER NOT NULL,
                             state TEXT NOT NULL, node TEXT NOT NULL, device TEXT NOT NULL,
                             episode_id TEXT NOT NULL, job TEXT NOT NULL, body TEXT NOT NULL,
                             UNIQUE (node, device, episode_id, job));
    CREATE INDEX migrations_by_state ON migrations (state);
    CREATE TABLE webhooks (id TEXT PRIMARY KEY, type TEXT NOT NULL, received_ms INTEGER NOT NULL);
    CREATE TABLE alerts (key TEXT PRIMARY KEY, received_ms INTEGER NOT NULL);
    CREATE TABLE nodes (name TEXT PRIMARY KEY, learned_ms INTEGER NOT NULL);
    CREATE TABLE cordons (node TEXT NOT NULL, device TEXT NOT NULL, source TEXT NOT NULL,
                          reason TEXT NOT NULL, since_ms INTEGER NOT NULL,
                          sent_ms INTEGER NOT NULL, PRIMARY KEY (node, device, source));
    CREATE TABLE releases (node TEXT NOT NULL, device TEXT NOT NULL, sent_ms INTEGER NOT NULL,
                           PRIMARY KEY (node, device));
    CREATE TABLE progress (job TEXT NOT NULL, seq INTEGER NOT NULL, at_ms INTEGER NOT NULL,
                           step INTEGER NOT NULL, loss REAL, node TEXT, device TEXT,
                           generation INTEGER NOT NULL, PRIMARY KEY (job, seq)) WITHOUT ROWID;
    """,
    # What is forgotten by age is found without reading all of it, at each webhook and alert.
    """
    CREATE INDEX webhooks_by_age ON webhooks (received_ms);
    CREATE INDEX alerts_by_age ON alerts (received_ms);
    CREATE INDEX jobs_by_age ON jobs (created_ms);
    CREATE INDEX migrations_by_age ON migrations (requested_ms);
    """,
)
"""Numbered schema changes: entry i takes a database from version i to i + 1. Append only."""

MAX_POINTS: Final = 4000
"""Progress points kept of one job; above it they are thinned to half."""
KEEP_WEBHOOK_IDS_MS: Final = 3 * 86_400_000
"""Longer than a sender retries (24 hours, contracts section 6)."""
KEEP_ALERTS_MS: Final = 30 * 86_400_000


def _unusable(path: Path, error: sqlite3.Error) -> RigcanaryError:
    return RigcanaryError(f"{path}: cannot use it as the runner's database: {error}")


class Store:
    """All statements of the runner. Lives in the thread that made it."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA busy_timeout=5000")
            self._migrate(path)
        except sqlite3.Error as error:
            self._db.close()  # with what an upgrade had begun
            raise _unusable(path, error) from error

    def _migrate(self, path: Path) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise RigcanaryError(
                f"{path}: was written by a newer rigcanary (schema {version}, this one knows "
                f"{len(MIGRATIONS)}); install that one, or give another --state"
            )
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN;{script}PRAGMA user_version={number};COMMIT;")

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; on disk when it ends."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # Jobs

    def save_job(self, job: Job) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)",
            (job.id, job.created_ms, job.state, records.job_to_json(job)),
        )

    def job(self, job_id: str) -> Job | None:
        row = self._db.execute("SELECT body FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else records.job_from_json(row[0])

    def jobs(self, limit: int) -> list[Job]:
        """The newest jobs, newest first."""
        rows = self._db.execute(
            "SELECT body FROM jobs ORDER BY created_ms DESC, id LIMIT ?", (limit,)
        )
        return [records.job_from_json(body) for (body,) in rows]

    def open_jobs(self) -> list[Job]:
        """Those that have not ended, oldest first."""
        rows = self._db.execute(
            "SELECT body FROM jobs WHERE state NOT IN (SELECT value FROM json_each(?)) "
            "ORDER BY created_ms, id",
            (json.dumps(sorted(ENDED)),),
        )
        return [records.job_from_json(body) for (body,) in rows]

    # Migrations

    def save_migration(self, m: Migration) -> None:
        self._db.execute(
            "INSERT INTO migrations VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET state = excluded.state, body = excluded.body",
            (
                m.id,
                m.requested_ms,
                m.state,
                m.node,
                m.device or "",
                m.episode_id,
                m.job or "",
                records.migration_to_json(m),
            ),
        )

    def migrations(self, limit: int) -> list[Migration]:
        """The newest migrations, newest first."""
        rows = self._db.execute(
            "SELECT body FROM migrations ORDER BY requested_ms DESC, rowid DESC LIMIT ?", (limit,)
        )
        return [records.migration_from_json(body) for (body,) in rows]

    def open_migrations(self) -> list[Migration]:
        """Those that are not done, oldest first."""
        rows = self._db.execute(
            "SELECT body FROM migrations WHERE state NOT IN (SELECT value FROM json_each(?)) "
            "ORDER BY requested_ms, rowid",
            (json.dumps(sorted(DONE)),),
        )
        return [records.migration_from_json(body) for (body,) in rows]

    def migrations_of(self, node: str, device: str | None, episode_id: str) -> list[Migration]:
        rows = self._db.execute(
            "SELECT body FROM migrations WHERE node = ? AND device = ? AND episode_id = ?",
            (node, device or "", episode_id),
        )
        return [records.migration_from_json(body) for (body,) in rows]

    # Identities of what arrived

    def saw_webhook(self, webhook_id: str, kind: str, now_ms: int) -> bool:
        """Remember a webhook; whether it is new."""
        self._db.execute(
            "DELETE FROM webhooks WHERE received_ms < ?", (now_ms - KEEP_WEBHOOK_IDS_MS,)
        )
        done = self._db.execute(
            "INSERT OR IGNORE INTO webhooks VALUES (?, ?, ?)", (webhook_id, kind, now_ms)
        )
        return done.rowcount == 1

    def saw_alert(self, key: str, now_ms: int) -> bool:
        """Remember an alert, also that it still speaks; whether it is new."""
        self._db.execute("DELETE FROM alerts WHERE received_ms < ?", (now_ms - KEEP_ALERTS_MS,))
        known = self._db.execute("UPDATE alerts SET received_ms = ? WHERE key = ?", (now_ms, key))
        if known.rowcount:
            return False
        self._db.execute("INSERT INTO alerts VALUES (?, ?)", (key, now_ms))
        return True

    # Nodes and cordons

    def learn_node(self, name: str, now_ms: int) -> None:
        self._db.execute("INSERT OR IGNORE INTO nodes VALUES (?, ?)", (name, now_ms))

    def learned_nodes(self) -> list[str]:
        return [name for (name,) in self._db.execute("SELECT name FROM nodes ORDER BY rowid")]

    def cordon(self, cordon: Cordon, sent_ms: int | None) -> bool:
        """Close a card; False when its sender has released it after ``sent_ms``."""
        key = (cordon.node, cordon.device or "")
        if sent_ms is not None:
            row = self._db.execute(
                "SELECT sent_ms FROM releases WHERE node = ? AND device = ?", key
            ).fetchone()
            if row is not None and row[0] >= sent_ms:
                return False
        self._db.execute(
            "INSERT OR IGNORE INTO cordons VALUES (?, ?, ?, ?, ?, ?)",
            (*key, cordon.source, cordon.reason, cordon.since_ms, sent_ms or 0),
        )
        return True

    def cordons(self) -> list[Cordon]:
        rows = self._db.execute(
            "SELECT node, device, source, reason, since_ms FROM cordons ORDER BY since_ms, rowid"
        )
        return [Cordon(n, d or None, s, r, at) for n, d, s, r, at in rows]

    def uncordon(self, node: str, device: str | None, *, source: str | None = None) -> int:
        """Open a card again (all reasons, or one source's); how many reasons fell."""
        query = "DELETE FROM cordons WHERE node = ? AND device = ?"
        arguments: tuple[str, ...] = (node, device or "")
        if source is not None:
            query, arguments = query + " AND source = ?", (*arguments, source)
        return self._db.execute(query, arguments).rowcount

    def uncordon_node(self, node: str) -> int:
        """Open a node and all its cards; how many reasons fell."""
        return self._db.execute("DELETE FROM cordons WHERE node = ?", (node,)).rowcount

    def release_sent(self, node: str, device: str | None, sent_ms: int) -> int:
        """A sender's release: what it closed until ``sent_ms`` opens; older news is ignored."""
        key = (node, device or "")
        self._db.execute(
            "INSERT INTO releases VALUES (?, ?, ?) ON CONFLICT (node, device) DO UPDATE "
            "SET sent_ms = max(sent_ms, excluded.sent_ms)",
            (*key, sent_ms),
        )
        return self._db.execute(
            "DELETE FROM cordons WHERE node = ? AND device = ? AND sent_ms <= ?", (*key, sent_ms)
        ).rowcount

    # Progress

    def add_progress(self, job_id: str, points: Iterable[Point]) -> None:
        (last,) = self._db.execute(
            "SELECT coalesce(max(seq), 0) FROM progress WHERE job = ?", (job_id,)
        ).fetchone()
        self._insert(job_id, last + 1, points)
        (count,) = self._db.execute(
            "SELECT count(*) FROM progress WHERE job = ?", (job_id,)
        ).fetchone()
        if count > MAX_POINTS:
            fewer = thin(self.progress(job_id), MAX_POINTS // 2, lambda p: p.generation)
            self._db.execute("DELETE FROM progress WHERE job = ?", (job_id,))
            self._insert(job_id, 1, fewer)

    def _insert(self, job_id: str, first: int, points: Iterable[Point]) -> None:
        self._db.executemany(
            "INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (job_id, first + i, p.at_ms, p.step, p.loss, p.node, p.device, p.generation)
                for i, p in enumerate(points)
            ],
        )

    def progress(self, job_id: str) -> list[Point]:
        rows = self._db.execute(
            "SELECT at_ms, step, loss, node, device, generation FROM progress WHERE job = ? "
            "ORDER BY seq",
            (job_id,),
        )
        return [Point(*row) for row in rows]
