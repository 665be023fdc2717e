"""What the embedded Kafka would forget: the worker's tables, and telemetry not yet counted.

Tansu keeps everything in memory. The journal mirrors the changelog topics of the worker's
tables into SQLite (latest value of each key) and puts them back into fresh topics before a
worker starts. At an orderly end it also takes along ("carries") what the worker had not
committed; the worker recognises what comes twice.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from contract.errors import RigcanaryError
from onebox import kafka_read
from onebox.journal_store import Record, Store

log = logging.getLogger(__name__)


class Journal:
    """Mirrors the changelogs of the broker at ``bootstrap`` into ``store``.

    ``changelogs``, ``inputs`` and ``outputs`` are topics of ``partitions`` partitions each.
    ``group`` is the consumer group whose commits say which inputs still count as unread. Of an
    output the newest so many records of each partition are carried over too, for readers that
    had not come that far.
    """

    def __init__(
        self,
        store: Store,
        bootstrap: str,
        *,
        changelogs: Sequence[str],
        inputs: Sequence[str],
        outputs: Mapping[str, int],
        group: str,
        partitions: int,
    ) -> None:
        self._store = store
        self._bootstrap = bootstrap
        self._changelogs = _all_partitions(changelogs, partitions)
        self._inputs = _all_partitions(inputs, partitions)
        self._outputs = {
            where: newest
            for topic, newest in outputs.items()
            for where in _all_partitions([topic], partitions)
        }
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
                if len(pending) >= kafka_read.CHUNK:
                    await asyncio.gather(*pending)
                    pending.clear()
            await asyncio.gather(*pending)
            await single.start()
            for where, record in held.items():
                self._starts[where] = (await (await _send(single, record))).offset + 1
        finally:
            await kafka_read.stop(bulk)
            await kafka_read.stop(single)

    async def start(self) -> None:
        """Begin to mirror in the background."""
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=kafka_read.FETCH_BYTES,
        )
        await self._consumer.start()
        self._consumer.assign(self._changelogs)
        for where in self._changelogs:
            self._consumer.seek(where, self._starts.get(where, 0))
        self._task = asyncio.create_task(self._mirror(), name="journal")

    async def _mirror(self) -> None:
        while True:
            try:
                fetched = await self._consumer.getmany(timeout_ms=500, max_records=kafka_read.CHUNK)
            except KafkaError as error:  # the broker is away; whoever restarts it calls stop()
                log.warning("the journal cannot read Kafka: %s", error)
                await asyncio.sleep(1.0)
                continue
            records = [kafka_read.record_of(m) for messages in fetched.values() for m in messages]
            while records:
                try:
                    self._store.apply(records)
                    break
                except sqlite3.Error as error:  # a full disk: nothing is read on until it is stored
                    log.error("the journal cannot be written, trying again: %s", error)
                    await asyncio.sleep(5.0)

    async def drain(self, timeout_seconds: float = 10.0) -> bool:
        """Wait until everything that is in the changelogs is mirrored. Call it once the worker
        has ended; false when that took longer than the time given.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                ends = await kafka_read.ends(self._bootstrap, self._changelogs)
                while any([await self._consumer.position(w) < end for w, end in ends.items()]):
                    await asyncio.sleep(0.05)
        except (TimeoutError, KafkaError):
            return False
        # A position moves when records are handed out; the store follows before the next fetch.
        await asyncio.sleep(0)
        return True

    async def carry(self, timeout_seconds: float = 60.0) -> int:
        """Keep the inputs that the worker's group has not committed, and the newest outputs.

        Returns how many inputs. Call it once bridge and worker have ended. Raises RigcanaryError.
        """
        unread = 0
        try:
            async with asyncio.timeout(timeout_seconds):
                ends = await kafka_read.ends(self._bootstrap, [*self._inputs, *self._outputs])
                starts = {w: max(ends[w] - newest, 0) for w, newest in self._outputs.items()}
                starts |= dict.fromkeys(self._inputs, 0) | await self._committed()
                wanted = {w: start for w, start in starts.items() if start < ends[w]}
                unread = sum(ends[w] - start for w, start in wanted.items() if w in self._inputs)
                async for records in kafka_read.read(self._bootstrap, wanted, ends):
                    self._store.carry(records)
        except (KafkaError, TimeoutError) as error:
            raise RigcanaryError(f"cannot read unprocessed messages from Kafka: {error}") from error
        return unread

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
            await kafka_read.stop(consumer)
        return {w: int(offset) for w, offset in offsets.items() if offset is not None}

    async def stop(self) -> None:
        """Stop mirroring; idempotent. What was fetched is stored."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._consumer is not None:
            await kafka_read.stop(self._consumer)
            self._consumer = None


def _all_partitions(names: Sequence[str], partitions: int) -> list[TopicPartition]:
    return [TopicPartition(name, p) for name in names for p in range(partitions)]


async def _send(producer: Any, record: Record) -> Any:
    return await producer.send(
        record.topic, value=record.value, key=record.key, partition=record.partition
    )
