"""The worker process on a real Kafka: rows exact, decisions once, whatever is killed when."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from standardwebhooks import Webhook
from stream_fleet import HOT_DEVICE, fleet_messages, records

from contract.topics import DEAD_LETTER, DECISIONS, KAFKA_TOPICS, MINUTES, TELEMETRY
from rigcanary.cli import run
from stream import minutes
from stream.validate import decode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="
PARTITIONS = 4
MOVES = {(None, "node_lost"), (HOT_DEVICE, "predicted")}
"""The rig that fell silent while the others spoke, and the card that heated."""
SUPPORT = Path(__file__).parent.parent / "support"


class Receiver:
    """Counts the webhooks it verified, by type and episode."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.migrations: Counter[tuple[str, str]] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                found = Webhook(SECRET).verify(body, dict(self.headers.items()))
                if self.headers["webhook-id"] not in outer.ids:
                    outer.ids.append(self.headers["webhook-id"])
                    if found["type"] == "migration.requested":
                        data = found["data"]
                        outer.migrations[data["device"], data["episode_id"]] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


class WorkerProcess:
    """The worker with the fake predictor, killed and started again at will."""

    def __init__(self, folder: Path, kafka: str, url: str, port: int, instance: str = "w0") -> None:
        self.port = port
        self.log = folder / f"{instance}.log"
        self.config = folder / f"{instance}.toml"
        self.config.write_text(
            f'kafka = "{kafka}"\nprofile = "embedded"\nweb_port = {port}\ninstance = "{instance}"\n'
            f'session_seconds = 6.0\n[[receivers]]\nname = "runner"\nurl = "{url}"\n'
            f'secret = "{SECRET}"\nallow_private = true\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SUPPORT / "fake_worker.py"), str(self.config)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def start_worker(
    tmp_path: Path, own_kafka: Any, receiver: Receiver, free_port: Callable[[], int]
) -> Iterator[Callable[..., WorkerProcess]]:
    made: list[WorkerProcess] = []

    def start(instance: str = "w0") -> WorkerProcess:
        worker = WorkerProcess(tmp_path, own_kafka.address, receiver.url, free_port(), instance)
        worker.start()
        made.append(worker)
        return worker

    yield start
    for worker in made:
        if worker.process is not None and worker.process.poll() is None:
            worker.kill()


async def create_topics(kafka: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in KAFKA_TOPICS])
    await admin.close()


async def read_all(kafka: str, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic now, by the fetch response's high watermark."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    parts = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    consumer.assign(parts)
    found: list[dict[str, Any]] = []
    quiet = 0
    while quiet < 4:
        batch = await consumer.getmany(timeout_ms=250)
        quiet = 0 if batch else quiet + 1
        found += [orjson.loads(r.value) for rs in batch.values() for r in rs]
    await consumer.stop()
    return found


def expected_rows(arrivals: list[tuple[int, str, dict[str, Any]]]) -> dict[tuple[str, int], Any]:
    """The published minute rows of everything that was sent, computed in one go."""
    samples = defaultdict(list)
    for _, node, message in arrivals:
        sample = decode(message, 2**53, Counter())
        samples[node, minutes.minute_of(sample.ts_ms) // 1000].append(sample)
    return {key: minutes.published(minutes.reduce(found)) for key, found in samples.items()}


async def wait_for_rows(
    kafka: str, expected: dict[tuple[str, int], Any], worker: WorkerProcess, seconds: float
) -> dict[tuple[str, int], Any]:
    deadline = time.monotonic() + seconds
    final: dict[tuple[str, int], Any] = {}
    while time.monotonic() < deadline:
        final = {}
        for row in await read_all(kafka, MINUTES):
            final[row["node"], row["minute"]] = row
        if final == expected:
            return final
        assert worker.process is not None
        assert worker.process.poll() is None, worker.log.read_text()[-3000:]
        await asyncio.sleep(1)
    return final


async def publish(
    kafka: str,
    arrivals: list[tuple[int, str, dict[str, Any]]],
    site: str,
    seconds: float,
    at_tick: Mapping[int, Callable[[], object]],
) -> None:
    """Send the fleet's records within about ``seconds``; ``at_tick`` does something on the way."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, max_batch_size=1, acks="all")
    await producer.start()
    ticks = list(records(arrivals, PARTITIONS, site))
    for tick, values in ticks:
        for partition, value in values:
            await producer.send_and_wait(TELEMETRY, value, partition=partition)
        if tick in at_tick:
            await asyncio.to_thread(at_tick[tick])
        await asyncio.sleep(seconds / len(ticks))
    await producer.stop()


def fleet(seed: int) -> list[tuple[int, str, dict[str, Any]]]:
    # In the recent past: the receiver's clock is the wall's.
    start_ms = (round(time.time() * 1000) - 3 * 3_600_000) // 60_000 * 60_000
    return fleet_messages(start_ms, nodes=6, cards=3, minutes=60, seed=seed, site="lab")


async def test_killed_at_random_moments_the_rows_are_exact_and_the_move_is_asked_once(
    own_kafka: Any, receiver: Receiver, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = own_kafka.address
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
    own_kafka: Any, receiver: Receiver, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = own_kafka.address
    await create_topics(kafka)
    arrivals = fleet(5)
    first = start_worker("w0")
    second = start_worker("w1")
    await publish(kafka, arrivals, "lab", 60, {400: first.kill})
    expected = expected_rows(arrivals)
    final = await wait_for_rows(kafka, expected, second, 120)
    assert final == expected
    assert list(receiver.migrations.values()) == [1, 1]


async def test_hostile_records_end_in_the_dead_letters_and_stop_nothing(
    own_kafka: Any, start_worker: Callable[..., WorkerProcess]
) -> None:
    kafka = own_kafka.address
    await create_topics(kafka)
    start_worker()
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
    assert final == expected
    reasons = Counter(d["reason"] for d in await read_all(kafka, DEAD_LETTER))
    assert set(reasons) == {"not-json", "record", "schema", "missing-key"}


async def test_a_person_takes_a_card_out_and_gives_it_back(
    own_kafka: Any, start_worker: Callable[..., WorkerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = own_kafka.address
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
