"""A minute that is closed a second time, with fakes in place of Kafka."""

import asyncio
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from stream_samples import START_MS, sample

from contract.minute import MINUTE_MS
from stream.edge.closing import Closer
from stream.edge.partition import Partition
from stream.fleet_view import FleetView


def answered() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


class Kafka:
    """The rows table and ``rigcanary.minutes``, which answer at once."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}
        self.stored: list[tuple[int, bytes]] = []
        self.published: list[tuple[int, dict[str, Any]]] = []

    def row(self, key: bytes) -> bytes | None:
        return self.table.get(key)

    def put_row(self, partition: int, key: bytes, value: bytes) -> Any:
        self.table[key] = value
        self.stored.append((partition, key))
        return answered()

    def minutes(self, partition: int, _key: str, value: dict[str, Any]) -> Any:
        self.published.append((partition, value))
        return answered()


def worker(kafka: Kafka, partitions: int = 1) -> tuple[Closer, Any]:
    """What a closer needs of a worker that has just started on these partitions."""
    rows = Counter("rows", "x", ["kind"], registry=CollectorRegistry())
    shared: Any = SimpleNamespace(
        tables=kafka, publisher=kafka, view=FleetView(), histories=[], due=[], generation=0,
        metrics=SimpleNamespace(minute_rows=rows), due_added=asyncio.Event(),
        partitions={n: Partition(n) for n in range(partitions)},
    )  # fmt: skip
    intake: Any = SimpleNamespace(held_samples=0, room=asyncio.Event())
    return Closer(shared, intake), shared


def feed(shared: Any, minutes: int, partition: int = 0, node: str = "rig1") -> None:
    for seq in range(minutes * 12):
        devices = {"GPU-a": {"power_watts": 1.0 * seq}}
        found = sample(seq, START_MS + seq * 5_000, devices, node=node)
        shared.partitions[partition].book.add(found)


async def test_a_row_stored_before_a_crash_is_published_after_it() -> None:
    kafka = Kafka()
    closer, shared = worker(kafka)
    feed(shared, 3)
    await closer.close_due(everything=True)
    first = [value for _, value in kafka.published]
    assert [v["minute"] * 1000 for v in first] == [START_MS + m * MINUTE_MS for m in range(3)]

    # Killed after the table's record and before the publication: all samples come again.
    kafka.published.clear()
    kafka.stored.clear()
    closer, shared = worker(kafka)
    feed(shared, 3)
    await closer.close_due(everything=True)
    assert [value for _, value in kafka.published] == first
    assert kafka.stored == []


async def test_partitions_are_written_in_turn() -> None:
    kafka = Kafka()
    closer, shared = worker(kafka, partitions=3)
    for number in range(3):
        feed(shared, 4, number, f"rig{number}")
    assert await closer.close_due(everything=True) == 12
    assert [partition for partition, _ in kafka.stored] == [0, 1, 2] * 4
    assert [partition for partition, _ in kafka.published] == [0, 1, 2] * 4
