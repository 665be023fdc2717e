"""The journal against the real embedded Kafka: nothing of the tables is lost with the broker."""

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ConfigError
from onebox.journal import Journal
from onebox.journal_store import Record, Store


class KafkaFixture(Protocol):
    """What conftest's broker offers."""

    @property
    def address(self) -> str: ...
    async def restart(self) -> None: ...
    async def create(self, *names: str, partitions: int = 2) -> None: ...


CHANGELOG, INPUT, OUTPUT, GROUP = "table-changelog", "input", "output", "group-a"


def journal(store: Store, address: str) -> Journal:
    return Journal(
        store,
        address,
        changelogs=[CHANGELOG],
        inputs=[INPUT],
        outputs={OUTPUT: 3},
        group=GROUP,
        partitions=2,
    )


async def produce(address: str, records: Iterable[Record]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address, linger_ms=20)
    await producer.start()
    try:
        futures = [
            await producer.send(r.topic, key=r.key, value=r.value, partition=r.partition)
            for r in records
        ]
        await asyncio.gather(*futures)
    finally:
        await producer.stop()


async def contents(address: str, topic: str) -> tuple[list[Record], dict[int, int]]:
    """Records of a topic, and the end offsets as the broker states them."""
    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        where = [TopicPartition(topic, p) for p in range(2)]
        consumer.assign(where)
        ends = await consumer.end_offsets(where)
        found = []
        while any([await consumer.position(w) < ends[w] for w in where]):
            for messages in (await consumer.getmany(timeout_ms=300)).values():
                found += [Record(m.topic, m.partition, m.key, m.value) for m in messages]
        return found, {w.partition: end for w, end in ends.items()}
    finally:
        await consumer.stop()


def updates(count: int) -> list[Record]:
    return [
        Record(CHANGELOG, n % 2, f"key{n % 14}".encode(), f"value{n}".encode())
        for n in range(count)
    ]


def latest(records: Iterable[Record]) -> dict[tuple[int, bytes | None], bytes]:
    table: dict[tuple[int, bytes | None], bytes] = {}
    for r in records:
        if r.value is None:
            table.pop((r.partition, r.key), None)
        else:
            table[r.partition, r.key] = r.value
    return table


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "journal.sqlite")) as opened:
        yield opened


async def test_tables_survive_the_broker(kafka: KafkaFixture, store: Store) -> None:
    await kafka.create(CHANGELOG, INPUT, OUTPUT)
    mirror = journal(store, kafka.address)
    await mirror.start()
    written = [*updates(200), Record(CHANGELOG, 0, b"key0", None)]
    await produce(kafka.address, written)
    assert await mirror.drain()
    await mirror.stop()
    await kafka.restart()
    await kafka.create(CHANGELOG, INPUT, OUTPUT)
    again = journal(store, kafka.address)
    assert await again.restore() == (13, 0)
    found, ends = await contents(kafka.address, CHANGELOG)
    assert latest(found) == latest(written)
    assert sum(ends.values()) == len(found) == 13  # the last batch held one record
    await again.start()
    await produce(kafka.address, [Record(CHANGELOG, 1, b"key1", b"newer")])
    assert await again.drain()
    await again.stop()
    assert latest(store.latest())[1, b"key1"] == b"newer"


async def test_carries_what_the_group_has_not_committed(kafka: KafkaFixture, store: Store) -> None:
    await kafka.create(CHANGELOG, INPUT, OUTPUT)
    sent = [Record(INPUT, n % 2, b"k%d" % n, b"v%d" % n) for n in range(40)]
    told = [Record(OUTPUT, 1, b"k", b"%d" % n) for n in range(10)]
    await produce(kafka.address, [*sent, *told])
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.address, group_id=GROUP, enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign([TopicPartition(INPUT, 0)])
    await consumer.commit({TopicPartition(INPUT, 0): 15})
    await consumer.stop()
    assert await journal(store, kafka.address).carry() == 5 + 20
    await kafka.restart()
    await kafka.create(CHANGELOG, INPUT, OUTPUT)
    assert await journal(store, kafka.address).restore() == (0, 25 + 3)
    found, _ = await contents(kafka.address, INPUT)
    per_partition = [[r for r in sent if r.partition == p] for p in (0, 1)]
    assert [r for r in found if r.partition == 0] == per_partition[0][15:]
    assert [r for r in found if r.partition == 1] == per_partition[1]
    assert (await contents(kafka.address, OUTPUT))[0] == told[-3:]
    assert store.counts() == (0, 0)


async def test_empty_journal_restores_nothing(kafka: KafkaFixture, store: Store) -> None:
    await kafka.create(CHANGELOG, INPUT, OUTPUT)
    mirror = journal(store, kafka.address)
    assert await mirror.restore() == (0, 0)
    await mirror.start()
    assert await mirror.drain()
    assert await mirror.carry() == 0
    await mirror.stop()
    await mirror.stop()


@given(
    st.lists(
        st.builds(
            Record,
            st.sampled_from(["a", "b"]),
            st.integers(0, 2),
            st.binary(max_size=2),
            st.none() | st.binary(max_size=3),
        ),
        max_size=40,
    ),
    st.integers(1, 7),
)
def test_store_keeps_the_last_value_of_a_key(records: list[Record], chunk: int) -> None:
    store = Store(Path(":memory:"))
    for start in range(0, len(records), chunk):
        store.apply(records[start : start + chunk])
    expected: dict[tuple[str, int, bytes | None], bytes] = {}
    for r in records:
        if r.value is None:
            expected.pop((r.topic, r.partition, r.key), None)
        else:
            expected[r.topic, r.partition, r.key] = r.value
    assert {(r.topic, r.partition, r.key): r.value for r in store.latest()} == expected
    store.close()


def test_refuses_what_is_not_its_file(tmp_path: Path) -> None:
    other = tmp_path / "journal.sqlite"
    other.write_bytes(b"not a database, but long enough to be read as one" * 20)
    with pytest.raises(ConfigError, match="journal.sqlite"):
        Store(other)
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(ConfigError, match="another version"):
        Store(newer)
