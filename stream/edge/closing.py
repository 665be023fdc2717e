"""Closed minutes: row to the table and to ``rigcanary.minutes``, then the window, then the ack."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from contract.minute import IDLE_SECONDS, MINUTE_MS
from stream import minutes
from stream.cadence import at_usual_cadence
from stream.edge.intake import MAX_HELD_SAMPLES, Intake
from stream.edge.partition import Partition
from stream.edge.shared import Shared
from stream.edge.tables import row_key
from stream.watermark import NodeMinute

BATCH: Final = 256
"""Minute rows written before the loop lets others run."""
MAX_UNSCORED_MINUTES: Final = 20
"""Rows of a node that may wait for scoring: the ring of rows holds that many beside a window."""


def batches(due: list[NodeMinute]) -> Iterator[list[NodeMinute]]:
    """Split what is due, oldest first within a node, so that no batch outruns scoring.

    In a batch no node's minutes lie further apart than scoring may be behind: after a long
    backlog a single batch would otherwise overwrite rows of the ring before they are scored.
    """
    waiting: dict[str, deque[int]] = {}
    for key, minute_ms in due:
        waiting.setdefault(key, deque()).append(minute_ms)
    while waiting:
        batch: list[NodeMinute] = []
        for key in list(waiting):
            mine = waiting[key]
            last_ms = mine[0] + MAX_UNSCORED_MINUTES * MINUTE_MS
            while mine and mine[0] <= last_ms and len(batch) < BATCH:
                batch.append((key, mine.popleft()))
            if not mine:
                del waiting[key]
        yield batch


class Closer:
    """Closes minutes that are due, the partitions side by side.

    Side by side, row by row: Faust's producer sends one record after the other and waits for
    Kafka as soon as two in a row are of the same partition.
    """

    def __init__(self, shared: Shared, intake: Intake) -> None:
        self._shared = shared
        self._intake = intake
        self.scored = asyncio.Event()

    async def close_due(self, *, everything: bool = False) -> int:
        """Close what is due now; ``everything`` closes open minutes too. Returns the count."""
        crowded = self._intake.held_samples > MAX_HELD_SAMPLES
        counts = await asyncio.gather(
            *(
                self._close_partition(partition, everything=everything or crowded)
                for partition in list(self._shared.partitions.values())
            )
        )
        if self._intake.held_samples <= MAX_HELD_SAMPLES:
            self._intake.room.set()
        return sum(counts)

    async def _close_partition(self, partition: Partition, *, everything: bool) -> int:
        idle = time.monotonic() - partition.last_arrival >= IDLE_SECONDS
        whole = everything or (idle and not partition.idle_closed)
        due = partition.book.due(everything=whole)
        count = 0
        for batch in batches(due):
            count += await self._close(partition, batch)
        if idle and not partition.book.due(everything=True):
            partition.idle_closed = True
        self._acknowledge(partition)
        return count

    def _acknowledge(self, partition: Partition) -> None:
        if self._shared.partitions.get(partition.number) is partition:
            for event in partition.ackable():
                event.ack()

    async def _close(self, partition: Partition, due: list[NodeMinute]) -> int:
        shared = self._shared
        generation = shared.generation
        await self._wait_for_scoring(partition, due, generation)
        if generation != shared.generation:
            return 0
        closed: list[tuple[minutes.MinuteRecord, bool]] = []
        futures: list[Any] = []
        for key, minute_ms in due:
            if not partition.book.is_open((key, minute_ms)):
                continue
            samples = partition.book.take((key, minute_ms))
            self._intake.held_samples -= len(samples)
            partition.closing.add((key, minute_ms))
            table_key = row_key(partition.number, key, minute_ms)
            old = self._stored(table_key, minute_ms)
            record = minutes.merge(old, samples)
            if record is not None:
                packed = minutes.pack(record)
                futures.append(shared.tables.put_row(partition.number, table_key, packed))
            else:
                # Nothing new, and yet published again: samples that come a second time may do
                # so because the worker died after the row was stored and before it was published.
                record = old
            if record is not None:
                closed.append((record, old is not None))
            await asyncio.sleep(0)
        # The rows are in Kafka before anything is published or acknowledged: a row that was
        # published but not stored would come back without its samples.
        await asyncio.gather(*futures)
        await self._publish(partition, closed)
        partition.closing.difference_update(due)
        return len(closed)

    async def _publish(
        self, partition: Partition, closed: list[tuple[minutes.MinuteRecord, bool]]
    ) -> None:
        shared = self._shared
        futures = []
        for record, corrected in closed:
            rows_DC = minutes.rows(record)
            value = minutes.published(record, rows_DC)
            futures.append(shared.publisher.minutes(partition.number, record.key, value))
            shared.view.minute(value)
            for history in shared.histories:
                history.minutes(value)
            shared.metrics.minute_rows.labels("corrected" if corrected else "published").inc()
            usual_DC = at_usual_cadence(rows_DC, record.interval_seconds)
            partition.windows.put(
                record.key, record.minute_ms, record.devices, usual_DC, record.interval_seconds
            )
            state = partition.state(record.site, record.node, record.key)
            for device, info in zip(record.devices, record.infos, strict=True):
                known = state.devices.get(device)
                if known is not None:
                    known.model = info.get("model")
            if record.minute_ms > state.scored_minute_ms:
                shared.due.append((partition.number, (record.key, record.minute_ms)))
            await asyncio.sleep(0)
        if closed:
            shared.due_added.set()
        await asyncio.gather(*futures)

    def _stored(self, table_key: bytes, minute_ms: int) -> minutes.MinuteRecord | None:
        data = self._shared.tables.row(table_key)
        if data is None:
            return None
        record = minutes.unpack(data)
        # The ring's slot may still hold the minute of ninety minutes before.
        return record if record.minute_ms == minute_ms else None

    async def _wait_for_scoring(
        self, partition: Partition, due: list[NodeMinute], generation: int
    ) -> None:
        """Let scoring catch up before rows that it needs are overwritten (fast replays)."""
        limit_ms = MAX_UNSCORED_MINUTES * MINUTE_MS
        while self._shared.generation == generation and self._shared.due:
            newest = dict(due)
            behind = any(
                number == partition.number and newest.get(key, 0) - minute_ms > limit_ms
                for number, (key, minute_ms) in self._shared.due
            )
            if not behind:
                return
            self.scored.clear()
            await self.scored.wait()
