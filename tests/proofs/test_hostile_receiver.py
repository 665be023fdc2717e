"""A hostile receiver against a worker that is killed at every step: each effect once, none lost.

The worker's part is ``tests/support/outbox_child.py``: the real outbox and deliverer with their
state in a real Kafka, killed with -9 by its own step counter and by the receiver in the middle of
a request. The receiver acts once a webhook-id, as any receiver must, and misbehaves otherwise.
"""

import asyncio
import base64
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from standardwebhooks import Webhook

from contract.times import rfc3339
from contract.topics import DECISIONS, DELIVERIES
from stream.deliveries import DeadLetters, read_record
from stream.edge.kafka_read import read_records, servers
from stream.edge.tables import NODES

FULL = os.environ.get("RIGCANARY_PROOF_FULL") == "1"
pytestmark = [pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(0 if FULL else 600)]

SCHEDULES = int(os.environ.get("RIGCANARY_PROOF_SCHEDULES", "200" if FULL else "20"))
AT_ONCE = 4
MAX_STARTS = 40
MAX_MISDEEDS = 5
"""Of the receiver against one webhook, so that every schedule ends."""
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
CHILD = Path(__file__).parent.parent / "support" / "outbox_child.py"
AT_MS = 1_767_225_600_000
MOODS = (
    "refuses", "acts_then_500", "throttles", "throttles_by_date", "redirects", "hangs_up",
    "breaks_off", "late", "slow", "kills_before", "kills_after",
)  # fmt: skip


def story(rng: random.Random, site: str) -> list[dict[str, Any]]:
    """Decisions of some cards, interleaved; each card's in order, the last one ends its episode."""
    queues = []
    for card in range(rng.randint(2, 5)):
        node, device = f"rig{card % 2}", None if card == 4 else f"GPU-{card}"
        kinds = ["migration.requested"]
        kinds += rng.choice([["migration.withdrawn"], ["device.quarantined"], []])
        kinds += ["device.released"]
        queues.append([(node, device, f"ep_{site}_{card}", kind) for kind in kinds])
    decisions = []
    while any(queues):
        node, device, episode, kind = rng.choice([q for q in queues if q]).pop(0)
        at_ms = AT_MS + 1000 * len(decisions)
        decision_id = f"dec_{episode}_{kind}"
        data = {
            "site": site,
            "node": node,
            "device": device,
            "episode_id": episode,
            "decision_id": decision_id,
            "cause": "threshold",
            "decided_at": rfc3339(at_ms),
            "number": len(decisions),
        }
        decisions.append(
            {
                "decision_id": decision_id,
                "type": kind,
                "dry_run": False,
                "decided_ms": at_ms,
                "data": data,
            }
        )
    return decisions


@dataclass
class Receiving:
    """Two receivers in one server; acts once an id, remembers everything."""

    rng: random.Random
    moods: tuple[str, ...] = MOODS
    max_kills: int = 3
    worker: int = 0
    kills: int = 0
    elsewhere: int = 0
    acted: set[tuple[str, str]] = field(default_factory=set)
    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    bodies: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    arrivals: dict[tuple[str, str, Any], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def act(self, name: str, webhook_id: str, whole: dict[str, Any]) -> None:
        if (name, webhook_id) not in self.acted:
            self.acted.add((name, webhook_id))
            self.effects[name, whole["data"]["decision_id"]] += 1

    def kill(self) -> None:
        if self.worker:
            self.kills += 1
            os.kill(self.worker, signal.SIGKILL)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/elsewhere":
            self.elsewhere += 1
            return web.Response(status=200)
        name = request.path.strip("/")
        raw = await request.read()
        whole = Webhook(SECRET).verify(raw, dict(request.headers))
        webhook_id = request.headers["webhook-id"]
        data = whole["data"]
        self.bodies[webhook_id].add(raw)
        self.arrivals[name, data["node"], data["device"]].append(data["number"])
        mood = "fine"
        if self.tries[name, webhook_id] < MAX_MISDEEDS and self.rng.random() < 0.6:
            mood = self.rng.choice(self.moods) if self.moods else "fine"
        if mood.startswith("kills") and self.kills >= self.max_kills:
            mood = "fine"
        self.tries[name, webhook_id] += 1
        self.seen[mood] += 1
        if mood in ("acts_then_500", "breaks_off", "late", "kills_after"):
            self.act(name, webhook_id, whole)
        if mood.startswith("kills"):
            self.kill()
        refusal = self.refusal(mood)
        if refusal is not None:
            return refusal
        if mood in ("hangs_up", "breaks_off"):
            return await break_off(request, answer=mood == "breaks_off")
        if mood in ("slow", "late"):
            await asyncio.sleep(0.1 if mood == "slow" else 0.5)  # late: past the time-out
        if mood != "kills_before":
            self.act(name, webhook_id, whole)
        return web.Response(status=self.rng.choice([200, 202, 204]))

    def refusal(self, mood: str) -> web.Response | None:
        """What is answered instead of a 2xx."""
        now = format_datetime(datetime.now(UTC), usegmt=True)
        answers: dict[str, tuple[int, dict[str, str]]] = {
            "refuses": (self.rng.choice([400, 500, 503]), {}),
            "acts_then_500": (500, {}),
            "throttles": (429, {"Retry-After": "1"}),
            "throttles_by_date": (503, {"Retry-After": now}),
            "redirects": (307, {"Location": "/elsewhere"}),
        }
        if mood not in answers:
            return None
        status, headers = answers[mood]
        return web.Response(status=status, headers=headers)


async def break_off(request: web.Request, *, answer: bool) -> web.StreamResponse:
    """Close the connection, with half of a good answer before it or without any."""
    assert request.transport is not None
    response = web.StreamResponse(status=200, headers={"Content-Length": "100"})
    if answer:
        await response.prepare(request)
        await response.write(b"half")
    request.transport.close()
    return response


class Worker:
    """Starts the worker's child again and again (one process that forks)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> "Worker":
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(CHILD),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
            )
        )

    async def run(self, command: dict[str, Any], receiving: Receiving) -> int:
        """One child from its start to its end; how it ended (-9: killed)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps(command) + b"\n")
        receiving.worker = int(await self._process.stdout.readline())
        async with asyncio.timeout(60):
            code = int(await self._process.stdout.readline())
        receiving.worker = 0  # another process may get this number
        return code

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def serve(receiving: Receiving) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiving.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def make_topics(kafka: str, prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    names = (NODES, DECISIONS, DELIVERIES)
    await admin.create_topics([NewTopic(f"{prefix}.{name}", 1, 1) for name in names])
    await admin.close()


async def check(
    kafka: str, prefix: str, decisions: list[dict[str, Any]], names: list[str], got: Receiving
) -> None:
    """Nothing lost, nothing twice, nothing changed, nothing out of order."""
    expected = {(name, d["decision_id"]): 1 for name in names for d in decisions}
    assert got.effects == expected
    assert all(len(found) == 1 for found in got.bodies.values())
    assert len(got.bodies) == len(decisions)
    for subject, numbers in got.arrivals.items():
        assert numbers == sorted(numbers), f"{subject}: {numbers}"
    assert got.elsewhere == 0
    letters, last = DeadLetters(), {}
    async for record in read_records(servers(kafka), f"{prefix}.{DELIVERIES}"):
        stored = read_record(record.partition, record.key, record.value)
        assert stored is not None
        letters.take(stored)
        last[stored.key] = stored.value["status"]
    assert letters.dead() == []
    assert set(last.values()) == {"delivered"}
    assert len(last) == len(expected)


async def play(kafka: str, worker: Worker, seed: int, prefix: str) -> tuple[int, Counter[str]]:
    """One random schedule to its end; how often the worker was killed, what the receiver did."""
    rng = random.Random(seed)
    decisions = story(rng, f"s{seed}")
    receiving = Receiving(random.Random(seed + 1))
    names = ["runner", "pager"][: rng.randint(1, 2)]
    runner, url = await serve(receiving)
    await make_topics(kafka, prefix)
    command = {
        "kafka": kafka,
        "prefix": prefix,
        "decisions": decisions,
        "receivers": [{"name": n, "url": f"{url}/{n}", "secret": SECRET} for n in names],
    }
    kills_left = rng.randint(1, 5)
    killed = 0
    try:
        for start in range(MAX_STARTS):
            kill_at = rng.randint(1, 40) if kills_left > 0 else None
            kills_left -= 1
            code = await worker.run({**command, "seed": start, "kill_at": kill_at}, receiving)
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"seed {seed}: ended with {code}"
            killed += 1
        else:
            pytest.fail(f"seed {seed}: not through after {MAX_STARTS} starts")
        try:
            await check(kafka, prefix, decisions, names, receiving)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        await runner.cleanup()
    return killed, receiving.seen


async def test_hostile_receiver_and_killed_worker_each_effect_once(
    kafka_broker: Any, unique: str
) -> None:
    first = random.randrange(2**31) if FULL else 1
    first = int(os.environ.get("RIGCANARY_PROOF_SEED", first))
    seeds = iter(range(first, first + SCHEDULES))
    kills, moods, done = 0, Counter[str](), 0

    async def lane() -> None:
        nonlocal kills, done
        worker = await Worker.start()
        try:
            for seed in seeds:
                killed, seen = await play(kafka_broker.address, worker, seed, f"{unique}.{seed}")
                kills += killed
                moods.update(seen)
                done += 1
                if FULL:
                    print(f"{done} schedules, {kills} kills", flush=True)
        finally:
            await worker.stop()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(lane())
    print(f"\n{done} schedules from seed {first}: {kills} kills, requests by mood {dict(moods)}")
    assert done == SCHEDULES
    assert kills >= SCHEDULES // 2
    assert set(moods) == {*MOODS, "fine"}


async def test_killed_at_each_step_in_turn(kafka_broker: Any, unique: str) -> None:
    """A short story, killed at its first step, in another run at its second, and so on."""
    worker = await Worker.start()
    decisions = [d for d in story(random.Random(3), "sweep") if d["data"]["device"] == "GPU-0"]
    step, code = 0, -signal.SIGKILL
    try:
        while code != 0:
            step += 1
            assert step < 200
            receiving = Receiving(random.Random(1), moods=())
            runner, url = await serve(receiving)
            prefix = f"{unique}.{step}"
            await make_topics(kafka_broker.address, prefix)
            command = {
                "kafka": kafka_broker.address,
                "prefix": prefix,
                "decisions": decisions,
                "receivers": [{"name": "runner", "url": f"{url}/runner", "secret": SECRET}],
                "seed": 1,
            }
            code = await worker.run({**command, "kill_at": step}, receiving)
            if code != 0:
                assert await worker.run({**command, "kill_at": None}, receiving) == 0
            await check(kafka_broker.address, prefix, decisions, ["runner"], receiving)
            await runner.cleanup()
    finally:
        await worker.stop()
    print(f"\n{len(decisions)} decisions: killed at each of {step - 1} steps")
    # Recording, announcing, sending, reporting, striking off: each has a before and an after.
    assert step - 1 >= 10 * len(decisions)
