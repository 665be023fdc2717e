"""The journal's SQLite file: latest value of each table key, and records carried over."""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from contract.errors import ConfigError

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS latest(
  topic TEXT NOT NULL, partition INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY(topic, partition, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS carried(
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, key BLOB, value BLOB);
"""
_VERSION: Final = 1


class Record(NamedTuple):
    """One Kafka record; ``value`` is None for a deletion."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class Store:
    """The SQLite file. Not safe for use by two threads at once."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path``.

        Raises:
            ConfigError: when it is no journal, or one of another version.
        """
        try:
            self._db = sqlite3.connect(path, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise ConfigError(
                    f"{path} was written by another version of rigcanary (journal {version}, "
                    f"{_VERSION} expected); give --state another folder"
                )
            self._db.executescript(_SCHEMA + f"PRAGMA user_version={_VERSION};")
        except sqlite3.Error as error:
            raise ConfigError(f"{path} cannot be used as the journal: {error}") from error

    def apply(self, records: Iterable[Record]) -> None:
        """Take changelog records in order; the last value of a key wins, None removes it."""
        with self._db:
            for record in records:
                where = (record.topic, record.partition, record.key or b"")
                if record.value is None:
                    self._db.execute(
                        "DELETE FROM latest WHERE topic=? AND partition=? AND key=?", where
                    )
                else:
                    self._db.execute(
                        "INSERT OR REPLACE INTO latest VALUES(?,?,?,?)", (*where, record.value)
                    )

    def carry(self, records: Iterable[Record]) -> None:
        """Keep records that must be produced again, in order."""
        with self._db:
            self._db.executemany(
                "INSERT INTO carried(topic, partition, key, value) VALUES(?,?,?,?)", records
            )

    def forget_carried(self) -> None:
        """Drop the carried records: they are in Kafka again."""
        with self._db:
            self._db.execute("DELETE FROM carried")

    def latest(self) -> Iterator[Record]:
        """The mirrored records, partition after partition."""
        rows = self._db.execute("SELECT * FROM latest ORDER BY topic, partition, key")
        return (Record(*row) for row in rows)

    def carried(self) -> Iterator[Record]:
        """The carried records in the order they were kept."""
        rows = self._db.execute("SELECT topic, partition, key, value FROM carried ORDER BY id")
        return (Record(*row) for row in rows)

    def counts(self) -> tuple[int, int]:
        """(mirrored records, carried records)."""
        query = "SELECT (SELECT count(*) FROM latest), (SELECT count(*) FROM carried)"
        mirrored, carried = self._db.execute(query).fetchone()
        return int(mirrored), int(carried)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()
