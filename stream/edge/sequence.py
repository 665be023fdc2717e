"""Records of a partition in offset order and none left out, whatever Faust's fetcher skips."""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from faust.types import TP

from contract.topics import TELEMETRY
from stream.edge.partition import Partition

log = logging.getLogger("rigcanary.worker")

SEEK_AGAIN_SECONDS: Final = 3.0
STALL_SECONDS: Final = 5.0
"""Without an arrival for this long although Kafka holds more, the position is set again."""


class Consumer(Protocol):
    """What is needed of Faust's consumer."""

    async def seek(self, partition: TP, offset: int) -> None:
        """Read ``offset`` next."""

    async def earliest_offsets(self, *partitions: TP) -> dict[TP, int]:
        """Oldest offsets that Kafka still has."""

    def highwater(self, tp: TP) -> int | None:
        """Offset after the newest record, None when nothing was fetched yet."""

    def assignment(self) -> set[TP]:
        """Partitions that are this worker's."""


class Sequence:
    """Guards against records that Faust skipped: nothing is taken before what was skipped.

    A skipped record followed by acknowledged ones would be committed past and lost. So everything
    beyond the expected offset is left out until a seek has brought it back. One seek may not be
    enough: a batch that Faust is still handing out sets its read position forward again behind
    the seek, and what the seek brings is dropped. While records come, each jump asks again;
    :meth:`seek_stalled` asks when none come any more.
    """

    def __init__(
        self,
        consumer: Callable[[], Consumer],
        committed: Callable[[TP], int | None],
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._committed = committed
        self._count = count
        self._clock = clock

    async def takes(self, partition: Partition, offset: int) -> bool:
        """Whether the record at ``offset`` is the next one; else it must be left out."""
        tp = TP(TELEMETRY, partition.number)
        if partition.next_offset is None:
            # Where Faust seeks to after recovery.
            partition.next_offset = self._committed(tp) or 0
        if offset > partition.next_offset:
            earliest = (await self._consumer().earliest_offsets(tp)).get(tp) or 0
            partition.next_offset = max(partition.next_offset, earliest)
        if offset > partition.next_offset:
            await self._seek(partition, partition.next_offset, f"record {offset} came", "jump")
        if offset != partition.next_offset:
            return False
        partition.next_offset = offset + 1
        return True

    async def seek_stalled(self, partitions: list[Partition]) -> None:
        """Seek where nothing arrives although Kafka holds more; call it every second or so."""
        consumer = self._consumer()
        mine = consumer.assignment()
        for partition in partitions:
            tp = TP(TELEMETRY, partition.number)
            next_offset = partition.next_offset
            if next_offset is None:
                next_offset = self._committed(tp)
            high = consumer.highwater(tp) if tp in mine else None
            if next_offset is None or high is None or next_offset >= high:
                partition.stalled_since = None
            elif partition.stalled_since is None or partition.stalled_since[1] != next_offset:
                partition.stalled_since = (self._clock(), next_offset)
            elif self._clock() - partition.stalled_since[0] >= STALL_SECONDS:
                partition.stalled_since = (self._clock(), next_offset)
                await self._seek(partition, next_offset, f"nothing came up to {high}", "stall")

    async def _seek(self, partition: Partition, offset: int, why: str, error: str) -> None:
        now = self._clock()
        if now - partition.sought_at < SEEK_AGAIN_SECONDS:
            return  # records that were already on their way
        partition.sought_at = now
        self._count(f"offset_{error}")
        log.warning("partition %d: %s, seeking back to %d", partition.number, why, offset)
        await self._consumer().seek(TP(TELEMETRY, partition.number), offset)
