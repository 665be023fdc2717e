"""Bridge and worker under hostile messages: none crashes them, none is lost, neighbours are exact.

``scripts/proof hostile-messages`` sends 100,000, CI some thousand.
"""

import asyncio
import base64
import os
import random
import sys
from collections import Counter
from typing import Any

import orjson
import pytest
from hostile import hostile, message
from stream_in_process import PARTITIONS, InProcess
from stream_worker import expected_rows

from contract.deadletter import MAX_DEAD_BYTES, REASONS
from contract.minute import LATENESS_MS
from contract.signals import COUNTERS, GAUGES
from contract.topics import DEAD_LETTER, EVENTS, TELEMETRY, node_key
from stream.edge.bridge_packer import Incoming, Outgoing, partition_of
from stream.minutes import minute_of

FULL = os.environ.get("RIGCANARY_PROOF_FULL") == "1"
COUNT = 100_000 if FULL else 3_000
A_BATCH = 40
START_MS = 1_767_225_600_000
SITE = "lab"
GOOD = ("good0", "good1", "good2")
Node = tuple[str, int, tuple[str, int]]


@pytest.fixture(autouse=True)
def _deep_comparison() -> Any:
    """What is nested a thousand deep has to be compared."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def identity(found: Any) -> Node:
    """Where an accepted message must show."""
    minute_ms = minute_of(round(found["ts"] * 1000))
    return node_key(found["site"], found["node"]), minute_ms, (found["boot_id"], found["seq"])


def unfiled(messages: list[Any], letters: list[dict[str, Any]]) -> list[Any]:
    """Messages of a record for which the worker wrote no letter; every letter must be of one."""
    left = list(messages)
    for letter in letters:
        assert letter["reason"] in REASONS
        payload = orjson.loads(base64.b64decode(letter["payload_base64"]))
        left.remove(payload)
    return left


def check_bridge_letter(record: Outgoing) -> None:
    letter, (item,) = orjson.loads(record.value), record.messages
    assert letter["reason"] in REASONS
    assert letter["detail"]
    assert base64.b64decode(letter["payload_base64"]) == item.payload[:MAX_DEAD_BYTES]


def check_plausible(row: dict[str, Any]) -> None:
    """Nothing impossible is in a row, whatever the messages said."""
    for device in row["devices"]:
        for signal in GAUGES:
            low, high = device.get(f"{signal.name}_min"), device.get(f"{signal.name}_max")
            assert low is None or signal.low <= low <= high <= signal.high, (signal.name, device)
        for signal in COUNTERS:
            last = device.get(f"{signal.name}_last")
            assert last is None or 0 <= last <= signal.high


async def straight_to_kafka(
    worker: InProcess, rng: random.Random, items: list[Incoming], good: bytes, now_ms: int
) -> list[Any]:
    """A record that no bridge wrote: the good message among JSON of any shape."""
    bodies = [good]
    for item in items:
        try:
            orjson.loads(b"[0," + item.payload + b",0]")  # an empty one would leave a comma
        except orjson.JSONDecodeError:
            continue
        bodies.append(item.payload)
    rng.shuffle(bodies)
    record = b'{"messages":[' + b",".join(bodies) + b"]}"
    partition = partition_of(f"{SITE}/{GOOD[0]}".encode(), PARTITIONS)
    before = len(worker.sent[DEAD_LETTER])
    await worker.record(TELEMETRY, partition, record, now_ms)
    return unfiled(orjson.loads(record)["messages"], worker.letters(before))


async def not_even_a_record(worker: InProcess, item: Incoming) -> None:
    """Bytes of any kind on both topics: one letter each that has them."""
    for topic in (TELEMETRY, EVENTS):
        before = len(worker.sent[DEAD_LETTER])
        await worker.record(topic, 0, item.payload, item.received_ms)
        letters = worker.letters(before)
        if topic == TELEMETRY:  # no payload here is {"messages": […]}
            assert len(letters) == 1
        for letter in letters:
            assert letter["reason"] in REASONS
            assert base64.b64decode(letter["payload_base64"]) == item.payload[:MAX_DEAD_BYTES]


async def storm(seed: int, count: int) -> tuple[InProcess, "Counter[str]"]:
    rng = random.Random(seed)
    worker = InProcess()
    goods: list[tuple[int, str, dict[str, Any]]] = []
    accepted: list[Node] = []
    tally: Counter[str] = Counter()
    sent = tick = 0
    try:
        while sent < count:
            now_ms = START_MS + tick * 5_000
            items = [hostile(rng, SITE, sent + i, now_ms) for i in range(A_BATCH)]
            if rng.random() < 0.3:
                items.append(items[0])  # delivered twice
            mine = [(tick, node, message(rng, SITE, node, tick, now_ms)) for node in GOOD]
            goods += mine
            plain = [
                Incoming(f"rigcanary/v1/{SITE}/{node}/telemetry", orjson.dumps(m), now_ms)
                for _, node, m in mine[1:]
            ]
            batch = items + plain
            rng.shuffle(batch)
            letters = len(worker.sent[DEAD_LETTER])
            packed = await worker.take(batch)
            filed = [r for r in packed if r.topic == DEAD_LETTER]
            for record in filed:
                check_bridge_letter(record)
            by_worker = [
                letter for letter in worker.letters(letters) if letter["topic"] == TELEMETRY
            ]
            told = [
                m for r in packed if r.topic == TELEMETRY for m in orjson.loads(r.value)["messages"]
            ]
            accepted += map(identity, unfiled(told, by_worker))
            carried = sum(len(r.messages) for r in packed)
            cleared = sum(not m.payload and m.topic.endswith("/status") for m in batch)
            assert carried + cleared == len(batch)
            tally["bridge letters"] += len(filed)
            tally["worker letters"] += len(by_worker)
            # The third good node's message travels in a record that no bridge made.
            rest = await straight_to_kafka(worker, rng, items[:5], orjson.dumps(mine[0][2]), now_ms)
            accepted += map(identity, rest)
            if rng.random() < 0.2:
                await not_even_a_record(worker, rng.choice(items))
            if tick % 6 == 0:
                await worker.work()
            sent, tick = sent + len(items), tick + 1
        await worker.work(everything=True)
    finally:
        worker.close()
    tally["hostile"], tally["good"] = sent, len(goods)
    stored = worker.stored()
    for key, minute_ms, who in accepted:
        assert who in stored[key, minute_ms], (seed, key, minute_ms, who)
    rows = worker.rows()
    expected = expected_rows(goods)
    assert {key: row for key, row in rows.items() if key[0] in GOOD} == expected, f"seed {seed}"
    for row in rows.values():
        check_plausible(row)
    assert worker.acked == worker.taken
    assert (tick - 1) * 5_000 > LATENESS_MS or not FULL
    tally["rows of good nodes"] = len(expected)
    return worker, tally


def test_hostile_messages_end_in_dead_letters_or_repaired_and_neighbours_are_exact():
    seed = random.randrange(2**32) if FULL else 7
    worker, tally = asyncio.run(storm(seed, COUNT))
    reasons = worker.reasons()
    assert {"not-json", "schema", "missing-key", "bad-value", "topic", "future", "late"} <= set(
        reasons
    )
    repaired = sum(worker.shared.repairs.values())
    assert repaired > COUNT / 100
    print(f"seed {seed}: {dict(tally)}, values repaired {repaired}, letters {dict(reasons)}")
