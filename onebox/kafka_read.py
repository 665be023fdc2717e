"""Reading Kafka partitions to their true end, which Tansu does not state right."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from onebox.journal_store import Record

CHUNK: Final = 500
"""Records handled in one go."""
FETCH_BYTES: Final = 8 * 1024 * 1024


def record_of(message: Any) -> Record:
    """A consumed message as a record."""
    return Record(message.topic, message.partition, message.key, message.value)


async def stop(client: Any, seconds: float = 5.0) -> None:
    """Stop an aiokafka client, whatever state its broker is in.

    With a broker that is gone ``client.stop()`` may hang, or end with the CancelledError of one
    of its own tasks, which a caller must not take for its own.
    """
    task = asyncio.ensure_future(client.stop())
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()


async def ends(bootstrap: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """End offset of each partition, from the high watermark of a fetch: Tansu's answer to
    ListOffsets is too low after a batch of several records.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        # An empty partition answers no fetch: the (never too high) end offsets tell those apart.
        found: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        filled = [w for w, end in found.items() if end > 0]
        # Sought at once after the assignment: aiokafka's stop() hangs on a partition whose
        # position it is still looking up.
        consumer.assign(filled)
        for where in filled:
            consumer.seek(where, max(0, found[where] - 1))
        waiting = set(filled)
        while waiting:
            await consumer.getmany(timeout_ms=200, max_records=1)
            for where in list(waiting):
                mark = consumer.highwater(where)
                if mark is not None:
                    found[where] = max(found[where], int(mark))
                    waiting.discard(where)
        return found
    finally:
        await stop(consumer)


async def read(
    bootstrap: str, starts: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int]
) -> AsyncIterator[list[Record]]:
    """Yield lists of records from ``starts`` up to ``until`` (exclusive)."""
    if not starts:
        return
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign(list(starts))
        for where, offset in starts.items():
            consumer.seek(where, offset)
        waiting = set(starts)
        while waiting:
            fetched = await consumer.getmany(timeout_ms=500, max_records=CHUNK)
            records = [
                record_of(m)
                for w, messages in fetched.items()
                for m in messages
                if m.offset < until[w]
            ]
            if records:
                yield records
            for where in list(waiting):
                if await consumer.position(where) >= until[where]:
                    waiting.discard(where)
    finally:
        await stop(consumer)
