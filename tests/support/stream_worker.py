"""The worker as a process, its receiver, and what it should have written, for tests."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from standardwebhooks import Webhook
from stream_fleet import fleet_messages, records

from contract.topics import KAFKA_TOPICS, MINUTES, TELEMETRY
from stream import minutes
from stream.validate import decode

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="
PARTITIONS = 4


class Receiver:
    """Counts the webhooks it verified, by type and episode; answers 503 to all
    but pings while ``refuses``."""

    def __init__(self) -> None:
        self.refuses = False
        self.refused: Counter[str] = Counter()
        self.ids: list[str] = []
        self.migrations: Counter[tuple[str, str]] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                found = Webhook(SECRET).verify(body, dict(self.headers.items()))
                if outer.refuses and found["type"] != "test.ping":
                    outer.refused[self.headers["webhook-id"]] += 1
                    self.send_response(503)
                    self.end_headers()
                    return
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


class WorkerProcess:
    """The worker with the fake predictor, killed and started again at will."""

    def __init__(self, folder: Path, kafka: Any, url: str, port: int, instance: str = "w0") -> None:
        self.port = port
        self.log = folder / f"{instance}.log"
        self.config = folder / f"{instance}.toml"
        self.config.write_text(
            f'kafka = "{kafka.address}"\nprofile = "{kafka.profile}"\nweb_port = {port}\n'
            f'instance = "{instance}"\n'
            f'session_seconds = 6.0\n[[receivers]]\nname = "runner"\nurl = "{url}"\n'
            f'secret = "{SECRET}"\nallow_private = true\n'
        )
        self.begun = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.begun = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "fake_worker.py"), str(self.config)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    async def recovered(self, seconds: float) -> None:
        """Wait until it has said once more since :meth:`start` that its partitions are there."""
        deadline = time.monotonic() + seconds
        while not re.search(r"partitions \[.*minute rows", self.log.read_text()[self.begun :]):
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            await asyncio.sleep(0.2)

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)


async def create_topics(kafka: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in KAFKA_TOPICS])
    await admin.close()


async def read_all(
    kafka: str, topic: str, parse: Callable[[bytes], Any] = orjson.loads
) -> list[Any]:
    """Every record of a topic now, by the fetch response's high watermark."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    parts = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    consumer.assign(parts)
    found: list[Any] = []
    quiet = 0
    while quiet < 4:
        batch = await consumer.getmany(timeout_ms=250)
        quiet = 0 if batch else quiet + 1
        found += [parse(r.value) for rs in batch.values() for r in rs]
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
