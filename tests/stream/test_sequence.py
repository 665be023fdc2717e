"""Every record in offset order, on a fetcher that loses what a seek brings as Faust's can."""

import asyncio
from collections import Counter

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from contract.topics import TELEMETRY
from stream.edge.partition import Partition
from stream.edge.sequence import SEEK_AGAIN_SECONDS, STALL_SECONDS, Sequence

NUMBER = 3
HERE = TP(TELEMETRY, NUMBER)


class FakeConsumer:
    """``records`` offsets; the fetch position, and how many of the next seeks come to nothing."""

    def __init__(self, records: int, position: int = 0, lost_seeks: int = 0) -> None:
        self.records = records
        self.position = position
        self.lost_seeks = lost_seeks
        self.earliest = 0
        self.mine = {HERE}
        self.seeks: list[int] = []

    async def seek(self, partition: TP, offset: int) -> None:
        assert partition == HERE
        self.seeks.append(offset)
        if self.lost_seeks:
            self.lost_seeks -= 1
        else:
            self.position = offset

    async def earliest_offsets(self, *partitions: TP) -> dict[TP, int]:
        return dict.fromkeys(partitions, self.earliest)

    def highwater(self, tp: TP) -> int | None:
        return self.records

    def assignment(self) -> set[TP]:
        return self.mine


class Rig:
    """A partition read record by record, with a clock that the test moves."""

    def __init__(self, consumer: FakeConsumer, committed: int | None = 0) -> None:
        self.now = 1000.0
        self.consumer = consumer
        self.partition = Partition(NUMBER)
        self.errors: Counter[str] = Counter()
        self.sequence = Sequence(
            lambda: consumer,
            lambda _: committed,
            lambda error: self.errors.update([error]),
            lambda: self.now,
        )
        self.taken: list[int] = []

    async def read(self) -> None:
        """Everything from the fetch position on, in 0.01 s a record."""
        while self.consumer.position < self.consumer.records:
            offset = self.consumer.position
            self.consumer.position += 1
            if await self.sequence.takes(self.partition, offset):
                self.taken.append(offset)
            self.now += 0.01

    async def wait(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1
            await self.sequence.seek_stalled([self.partition])
            await self.read()


def test_a_skipped_tail_is_read_although_the_seek_was_lost() -> None:
    """The last records are skipped, the seek comes to nothing, and nothing is ever sent again."""

    async def run() -> None:
        consumer = FakeConsumer(20, position=15, lost_seeks=1)
        rig = Rig(consumer, committed=10)
        await rig.read()
        assert rig.taken == []
        await rig.wait(STALL_SECONDS + 2)
        assert rig.taken == list(range(10, 20))
        assert rig.errors == {"offset_jump": 1, "offset_stall": 1}
        await rig.wait(60)
        assert len(consumer.seeks) == 2

    asyncio.run(run())


def test_a_tail_of_which_nothing_arrived_is_read() -> None:
    async def run() -> None:
        rig = Rig(FakeConsumer(20, position=20), committed=10)
        await rig.wait(STALL_SECONDS + 2)
        assert rig.taken == list(range(10, 20))

    asyncio.run(run())


def test_what_kafka_no_longer_has_is_not_waited_for() -> None:
    async def run() -> None:
        consumer = FakeConsumer(20, position=15)
        consumer.earliest = 15
        rig = Rig(consumer, committed=10)
        await rig.read()
        assert rig.taken == list(range(15, 20))
        assert consumer.seeks == []

    asyncio.run(run())


def test_no_seek_where_records_come_or_the_partition_is_another_workers() -> None:
    async def run() -> None:
        consumer = FakeConsumer(5)
        rig = Rig(consumer)
        for records in range(6, 40):  # one a second; always one is on its way
            await rig.read()
            consumer.records = records
            await rig.sequence.seek_stalled([rig.partition])
            rig.now += 1
        assert consumer.seeks == []
        consumer.position = consumer.records = 50
        consumer.mine = set()
        await rig.wait(60)
        assert consumer.seeks == []

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 8)), max_size=12),
    st.integers(0, 4),
    st.integers(0, 20),
)
def test_whatever_is_skipped_and_repeated_every_record_is_taken_once_in_order(
    jumps: list[tuple[int, float]], lost_seeks: int, committed: int
) -> None:
    async def run() -> None:
        consumer = FakeConsumer(30, position=committed, lost_seeks=lost_seeks)
        rig = Rig(consumer, committed=committed)
        for position, seconds in jumps:
            consumer.position = position
            await rig.read()
            rig.now += seconds
        await rig.wait((lost_seeks + 2) * (STALL_SECONDS + SEEK_AGAIN_SECONDS))
        assert rig.taken == list(range(committed, 30))

    asyncio.run(run())
