"""A worker that starts on Apache Kafka with an empty, and with a compacted changelog."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from stream_fleet import fleet_messages, records
from stream_worker import (
    PARTITIONS,
    WorkerProcess,
    expected_rows,
    read_all,
    wait_for_rows,
)

from contract.topics import RISKS, TELEMETRY
from stream.minutes import minute_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("any_kafka", ["own_apache_kafka"], indirect=True),
]

ROWS = "rigcanary-worker-rows-changelog"
MINUTES = 110
KILLED_AT = 100
HELD_BACK = 97
"""Some of this minute's samples come only after the restart: the stored row is corrected."""
Arrivals = list[tuple[int, str, dict[str, Any]]]


async def settings_of(admin: Any, topic: str) -> dict[str, str]:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for entry in answer.resources[0][4]}


async def send(kafka: str, arrivals: Arrivals) -> None:
    """All at once, in Kafka's ordinary batches."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all", linger_ms=20)
    await producer.start()
    for _, values in records(arrivals, PARTITIONS, "lab"):
        for partition, value in values:
            await producer.send(TELEMETRY, value, partition=partition)
    await producer.stop()


async def compacted(kafka: str, seconds: float = 60) -> tuple[int, int]:
    """``(records, offsets)`` of the rows' changelog, once Kafka has dropped replaced rows."""
    deadline = time.monotonic() + seconds
    while True:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
        await consumer.start()
        parts = [TopicPartition(ROWS, p) for p in range(PARTITIONS)]
        ends = await consumer.end_offsets(parts)
        await consumer.stop()
        found = len(await read_all(kafka, ROWS, parse=len))
        if found < sum(ends.values()) or time.monotonic() > deadline:
            return found, sum(ends.values())
        await asyncio.sleep(0.5)


def expected_risk(rows: dict[tuple[str, int], Any], node: str, minute: int, device: str) -> float:
    """What the fake predictor says of a window whose rows are all there."""
    means = [
        d["temperature_celsius_mean"]
        for at in range(minute - 9 * 60, minute + 60, 60)
        for d in rows.get((node, at), {"devices": []})["devices"]
        if d["device"] == device
    ]
    return sum(means) / len(means) / 100


async def test_windows_come_back_exact_from_an_empty_and_from_a_compacted_changelog(
    any_kafka: Any, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = any_kafka.address
    start_ms = minute_of(round(time.time() * 1000)) - (MINUTES + 15) * 60_000
    arrivals = fleet_messages(start_ms, nodes=4, cards=2, minutes=MINUTES, seed=3, site="lab")
    worker = start_worker()  # makes the topics
    await worker.recovered(60)
    worker.kill()

    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    made = await settings_of(admin, ROWS)
    assert made["cleanup.policy"] == "compact"
    assert made["segment.ms"] == "3600000"
    telemetry = await settings_of(admin, TELEMETRY)
    assert (telemetry["retention.ms"], telemetry["cleanup.policy"]) == ("86400000", "delete")
    # The same topic, with segments of an instant: whatever is replaced is dropped within seconds.
    await admin.delete_topics([ROWS])
    small = {**made, "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}
    wanted = {key: small[key] for key in ("cleanup.policy", "segment.ms", "max.message.bytes")}
    wanted["min.cleanable.dirty.ratio"] = small["min.cleanable.dirty.ratio"]
    await admin.create_topics([NewTopic(ROWS, PARTITIONS, 1, topic_configs=wanted)])
    await admin.close()

    worker.start()
    await worker.recovered(90)  # from an empty changelog
    held = [a for a in arrivals if (a[0] // 12, a[1]) == (HELD_BACK, "rig2") and a[0] % 12 > 6]
    before = [a for a in arrivals if a[0] < KILLED_AT * 12 and a not in held]
    after = [a for a in arrivals if a[0] >= KILLED_AT * 12]
    for part in range(0, KILLED_AT, 20):
        await send(kafka, [a for a in before if part <= a[0] // 12 < part + 20])
        await asyncio.sleep(1)
    early = expected_rows(before)
    assert await wait_for_rows(kafka, early, worker, 90) == early
    worker.kill()
    found, offsets = await compacted(kafka)
    assert found < offsets, "Kafka has not compacted the changelog"

    worker.start()
    await worker.recovered(90)  # from a compacted one
    await send(kafka, held + after)
    whole = expected_rows(before + held + after)
    assert await wait_for_rows(kafka, whole, worker, 90) == whole
    scored = [
        (row["node"], row["minute"], d)
        for row in await read_all(kafka, RISKS)
        for d in row["devices"]
        if row["minute"] * 1000 >= start_ms + KILLED_AT * 60_000 and row["node"] in ("rig1", "rig3")
    ]
    assert len({(node, minute) for node, minute, _ in scored}) == 2 * (MINUTES - KILLED_AT)
    for node, minute, device in scored:
        assert device["status"] == "scored"
        assert device["completeness"] == 1.0
        assert device["risk_60m"] == pytest.approx(
            expected_risk(whole, node, minute, device["device"]), rel=1e-5
        )
