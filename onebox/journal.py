"""What the embedded Kafka would forget: the worker's tables, and telemetry not yet counted.

Tansu keeps everything in memory. The journal mirrors the changelog topics of the worker's
tables into SQLite (latest value of each key) and puts them back into fresh topics before a
worker starts. At an orderly end it also takes along ("carries") what the worker had not
committed; the worker recognises what comes twice.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from contract.errors import ConfigError, RigcanaryError

log = logging.getLogger(__name__)

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS latest(
  topic TEXT NOT NULL, partition INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY(topic, partition, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS carried(
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, key BLOB, value BLOB);
"""
_VERSION: Final = 1
_CHUNK: Final = 500
_FETCH_BYTES: Final = 8 * 1024 * 1024


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


class Journal:
    """Mirrors the changelogs of the broker at ``bootstrap`` into ``store``.

    ``changelogs`` and ``inputs`` are topics of ``partitions`` partitions each; ``group`` is the
    consumer group whose commits say which inputs still count as unread.
    """

    def __init__(
        self,
        store: Store,
        bootstrap: str,
        *,
        changelogs: Sequence[str],
        inputs: Sequence[str],
        group: str,
        partitions: int,
    ) -> None:
        self._store = store
        self._bootstrap = bootstrap
        self._changelogs = _all_partitions(changelogs, partitions)
        self._inputs = _all_partitions(inputs, partitions)
        self._group = group
        self._starts: dict[TopicPartition, int] = {}
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None

    async def restore(self) -> tuple[int, int]:
        """Produce mirrored and carried records into the (fresh) topics.

        Returns how many of each. Raises RigcanaryError when Kafka does not take them.
        """
        counts = self._store.counts()
        if counts == (0, 0):
            return counts
        try:
            await self._produce(self._store.latest())
            await self._produce(self._store.carried())
        except KafkaError as error:
            raise RigcanaryError(f"cannot restore the journal into Kafka: {error}") from error
        self._store.forget_carried()
        return counts

    async def _produce(self, records: Iterator[Record]) -> None:
        # Tansu's end offset is that of its last batch's first record plus one, and Faust's
        # recovery trusts it: the last record of each partition therefore travels alone.
        held: dict[TopicPartition, Record] = {}
        bulk = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", linger_ms=5)
        single = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", max_batch_size=1)
        await bulk.start()
        try:
            pending = []
            for record in records:
                where = TopicPartition(record.topic, record.partition)
                before = held.get(where)
                held[where] = record
                if before is not None:
                    pending.append(await _send(bulk, before))
                if len(pending) >= _CHUNK:
                    await asyncio.gather(*pending)
                    pending.clear()
            await asyncio.gather(*pending)
            await single.start()
            for where, record in held.items():
                self._starts[where] = (await (await _send(single, record))).offset + 1
        finally:
            await bulk.stop()
            await single.stop()

    async def start(self) -> None:
        """Begin to mirror in the background."""
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        await self._consumer.start()
        self._consumer.assign(self._changelogs)
        for where in self._changelogs:
            self._consumer.seek(where, self._starts.get(where, 0))
        self._task = asyncio.create_task(self._mirror(), name="journal")

    async def _mirror(self) -> None:
        while True:
            try:
                fetched = await self._consumer.getmany(timeout_ms=500, max_records=_CHUNK)
            except KafkaError as error:  # the broker is away; whoever restarts it calls stop()
                log.warning("the journal cannot read Kafka: %s", error)
                await asyncio.sleep(1.0)
                continue
            records = [
                Record(m.topic, m.partition, m.key, m.value)
                for messages in fetched.values()
                for m in messages
            ]
            if records:
                self._store.apply(records)

    async def drain(self, timeout_seconds: float = 10.0) -> bool:
        """Wait until everything that is in the changelogs is mirrored. Call it once the worker
        has ended; false when that took longer than the time given.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                ends = await _ends(self._bootstrap, self._changelogs)
                while any([await self._consumer.position(w) < end for w, end in ends.items()]):
                    await asyncio.sleep(0.05)
        except (TimeoutError, KafkaError):
            return False
        # A position moves when records are handed out; the store follows before the next fetch.
        await asyncio.sleep(0)
        return True

    async def carry(self, timeout_seconds: float = 60.0) -> int:
        """Keep what the worker's group has not committed of the inputs; returns how many
        records. Call it once bridge and worker have ended. Raises RigcanaryError.
        """
        count = 0
        try:
            async with asyncio.timeout(timeout_seconds):
                ends = await _ends(self._bootstrap, self._inputs)
                starts = await self._committed()
                unread = {w: starts.get(w, 0) for w, end in ends.items() if starts.get(w, 0) < end}
                async for records in _read(self._bootstrap, unread, ends):
                    self._store.carry(records)
                    count += len(records)
        except (KafkaError, TimeoutError) as error:
            raise RigcanaryError(f"cannot read unprocessed messages from Kafka: {error}") from error
        return count

    async def _committed(self) -> dict[TopicPartition, int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=self._group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign(self._inputs)
            for where in self._inputs:
                consumer.seek(where, 0)
            offsets = {w: await consumer.committed(w) for w in self._inputs}
        finally:
            await consumer.stop()
        return {w: int(offset) for w, offset in offsets.items() if offset is not None}

    async def stop(self) -> None:
        """Stop mirroring; idempotent. What was fetched is stored."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None


def _all_partitions(names: Sequence[str], partitions: int) -> list[TopicPartition]:
    return [TopicPartition(name, p) for name in names for p in range(partitions)]


async def _send(producer: Any, record: Record) -> Any:
    return await producer.send(
        record.topic, value=record.value, key=record.key, partition=record.partition
    )


async def _ends(bootstrap: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """End offset of each partition, from the high watermark of a fetch: Tansu's answer to
    ListOffsets is too low after a batch of several records.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    await consumer.start()
    try:
        # An empty partition answers no fetch: the (never too high) end offsets tell those apart.
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        filled = [w for w, end in ends.items() if end > 0]
        # Sought at once after the assignment: aiokafka's stop() hangs on a partition whose
        # position it is still looking up.
        consumer.assign(filled)
        for where in filled:
            consumer.seek(where, max(0, ends[where] - 1))
        waiting = set(filled)
        while waiting:
            await consumer.getmany(timeout_ms=200, max_records=1)
            for where in list(waiting):
                mark = consumer.highwater(where)
                if mark is not None:
                    ends[where] = max(ends[where], int(mark))
                    waiting.discard(where)
        return ends
    finally:
        await consumer.stop()


async def _read(
    bootstrap: str, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> AsyncIterator[list[Record]]:
    """Yield lists of records from ``starts`` up to ``ends`` (exclusive)."""
    if not starts:
        return
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign(list(starts))
        for where, offset in starts.items():
            consumer.seek(where, offset)
        waiting = set(starts)
        while waiting:
            fetched = await consumer.getmany(timeout_ms=500, max_records=_CHUNK)
            records = [
                Record(m.topic, m.partition, m.key, m.value)
                for w, messages in fetched.items()
                for m in messages
                if m.offset < ends[w]
            ]
            if records:
                yield records
            for where in list(waiting):
                if await consumer.position(where) >= ends[where]:
                    waiting.discard(where)
    finally:
        await consumer.stop()
