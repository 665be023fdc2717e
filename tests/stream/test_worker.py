"""The worker process on a real Kafka: rows exact, decisions once, whatever is killed when."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from stream_fleet import HOT_DEVICE, records
from stream_worker import (
    PARTITIONS,
    Receiver,
    WorkerProcess,
    create_topics,
    expected_rows,
    fleet,
    publish,
    read_all,
    wait_for_rows,
)

from contract.topics import DEAD_LETTER, DECISIONS, MINUTES, TELEMETRY
from rigcanary.cli import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAME = "migration.requested"
MOVES = {(None, "node_lost"), (HOT_DEVICE, "predicted")}
"""The rig that fell silent while the others spoke, and the card that heated."""


async def test_killed_at_random_moments_the_rows_are_exact_and_the_move_is_asked_once(
    any_kafka: Any, receiver: Receiver, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = any_kafka.address
    await create_topics(kafka)
    full = os.environ.get("RIGCANARY_PROOF_FULL") == "1"
    kills = 6 if full else 2
    seed = random.randrange(2**32) if full else 11
    rng = random.Random(seed)
    arrivals = fleet(seed)
    worker = start_worker()

    def restart() -> None:
        worker.kill()
        time.sleep(rng.uniform(0, 1))
        worker.start()

    moments = {rng.randrange(150, 700): restart for _ in range(kills)}
    await publish(kafka, arrivals, "lab", 60, moments)
    expected = expected_rows(arrivals)
    final = await wait_for_rows(kafka, expected, worker, 120)
    wrong = [key for key in expected if final.get(key) != expected[key]]
    counts = [(k, final.get(k, {}).get("messages"), expected[k]["messages"]) for k in wrong]
    log = worker.log.read_text()
    assert not wrong, f"seed {seed}: {len(wrong)} of {len(expected)}: {counts[:5]}\n{log}"
    assert set(final) == set(expected)
    decisions = {d["decision_id"]: d for d in await read_all(kafka, DECISIONS)}
    moves = [d for d in decisions.values() if d["type"] == "migration.requested"]
    assert {(d["data"]["device"], d["data"]["cause"]) for d in moves} == MOVES
    assert len(moves) == len(MOVES)
    assert list(receiver.migrations.values()) == [1, 1]
    assert worker.kill(signal.SIGTERM) == 0


async def test_two_workers_share_and_the_survivor_takes_over(
    any_kafka: Any, receiver: Receiver, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = any_kafka.address
    await create_topics(kafka)
    arrivals = fleet(5)
    first = start_worker("w0")
    second = start_worker("w1")
    await publish(kafka, arrivals, "lab", 60, {400: first.kill})
    expected = expected_rows(arrivals)
    final = await wait_for_rows(kafka, expected, second, 120)
    wrong = [key for key in expected if final.get(key) != expected[key]]
    assert not wrong, f"{len(wrong)} of {len(expected)}: {wrong[:5]}\n{second.log.read_text()}"
    assert set(final) == set(expected)
    assert list(receiver.migrations.values()) == [1, 1]


@pytest.mark.parametrize("any_kafka", ["own_kafka"], indirect=True)
async def test_what_a_receiver_refuses_is_sent_until_it_takes_it_also_after_a_kill(
    any_kafka: Any, receiver: Receiver, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = any_kafka.address
    await create_topics(kafka)
    receiver.refuses = True
    worker = start_worker()
    await publish(kafka, fleet(5), "lab", 60, {})

    async def moves_refused_more_than(times: dict[str, int]) -> dict[str, int]:
        """Until both moves were decided and each was refused since ``times``."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = [d for d in await read_all(kafka, DECISIONS) if d["type"] == NAME]
            ids = {d["decision_id"].replace("dec_", "msg_") for d in found}
            now = {webhook_id: receiver.refused[webhook_id] for webhook_id in ids}
            if len(now) == len(MOVES) and all(n > times.get(k, 0) for k, n in now.items()):
                return now
            await asyncio.sleep(0.5)
        raise AssertionError(f"{receiver.refused} after {times}\n{worker.log.read_text()}")

    before = await moves_refused_more_than({})
    worker.kill()
    worker.start()
    after = await moves_refused_more_than(before)
    receiver.refuses = False
    deadline = time.monotonic() + 120
    while len(receiver.migrations) < len(MOVES) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    assert list(receiver.migrations.values()) == [1, 1], worker.log.read_text()
    assert set(after) <= set(receiver.ids)


@pytest.mark.parametrize("any_kafka", ["own_kafka"], indirect=True)
async def test_hostile_records_end_in_the_dead_letters_and_stop_nothing(
    any_kafka: Any, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = any_kafka.address
    await create_topics(kafka)
    worker = start_worker()
    good = fleet(3)[:200]
    hostile: list[bytes] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": 1}',
        b'{"messages": [null, 1, "x", {}]}',
        b'{"messages": [{"schema": "rigcanary.telemetry/1"}]}',
        b"\xff" * 100,
    ]
    producer = AIOKafkaProducer(bootstrap_servers=kafka, max_batch_size=1)
    await producer.start()
    for tick, values in records(good, PARTITIONS, "lab"):
        for partition, value in values:
            await producer.send_and_wait(TELEMETRY, value, partition=partition)
            bad = hostile[tick % len(hostile)]
            await producer.send_and_wait(TELEMETRY, bad, partition=partition)
    await producer.stop()
    expected = expected_rows(good)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        final = {(r["node"], r["minute"]): r for r in await read_all(kafka, MINUTES)}
        if final == expected:
            break
        await asyncio.sleep(1)
    wrong = [key for key in expected if final.get(key) != expected[key]]
    assert not wrong, f"{len(wrong)} of {len(expected)}: {wrong[:5]}\n{worker.log.read_text()}"
    assert set(final) == set(expected)
    reasons = Counter(d["reason"] for d in await read_all(kafka, DEAD_LETTER))
    assert set(reasons) == {"not-json", "record", "schema", "missing-key"}


async def test_a_person_takes_a_card_out_and_gives_it_back(
    any_kafka: Any, start_worker: Callable[..., WorkerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = any_kafka.address
    await create_topics(kafka)
    worker = start_worker()
    arrivals = fleet(3)[:400]
    node, device = arrivals[0][1], arrivals[0][2]["devices"][0]["device"]
    await publish(kafka, arrivals, "lab", 5, {})
    web = f"http://127.0.0.1:{worker.port}"

    def say(*words: str) -> tuple[int, str]:
        code = run([*words, "--web", web])
        out = capsys.readouterr()
        return code, out.out + out.err

    def order(command: str, card: str = device) -> tuple[int, str]:
        why = ("--reason", "fan changed", "--by", "mei", "--kafka", kafka)
        return say(command, f"lab/{node}", card, *why)

    deadline = time.monotonic() + 60
    text = ""
    # Refused until its first minute is scored, unanswered until the worker is there.
    while f"{device} is quarantined" not in text and time.monotonic() < deadline:
        _, text = await asyncio.to_thread(order, "quarantine")
        await asyncio.sleep(0.5)
    assert f"{device} is quarantined" in text
    assert await asyncio.to_thread(order, "quarantine", "GPU-none") != (0, "")
    code, text = await asyncio.to_thread(say, "episodes", "--open", "--node", f"lab/{node}")
    assert code == 0
    assert "by=mei" in text
    assert "fan changed" in text
    code, text = await asyncio.to_thread(order, "release")
    assert (code, "takes jobs again" in text) == (0, True)
    kinds = {d["type"]: d["data"] for d in await read_all(kafka, DECISIONS)}
    assert kinds["device.quarantined"]["by"] == kinds["device.released"]["by"] == "mei"
    code, text = await asyncio.to_thread(say, "episodes", "--json")
    assert orjson.loads(text)["episodes"][0]["closed_at"] is not None
