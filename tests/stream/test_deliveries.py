"""Dead letters: listed, sent again under their old ids, and never behind what overtook them."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from outbox_child import App, Steps, make_shared

from contract.topics import DECISIONS, DELIVERIES
from rigcanary.cli import run
from stream import deliveries
from stream.deliveries import DeadLetters, Stored, as_retry, check_body, read_record
from stream.edge.delivery_retries import Retries
from stream.edge.kafka_read import servers
from stream.edge.outbox import Outbox
from stream.edge.tables import NODES
from stream.edge.webhook import Deliverer, Schedule, body
from stream.edge.webhook_delivery import report
from stream.edge.webhook_http import Outgoing
from stream.receivers import Receiver

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
AT_MS = 1_767_225_600_000
KEY = "lab/rig1"


def letter(number=1, kind="migration.requested", at_ms=AT_MS, status="dead", receiver="runner"):
    data = {"site": "lab", "node": "rig1", "device": "GPU-1", "decision_id": f"dec_{number}"}
    outgoing = Outgoing(
        f"msg_{number}", kind, "lab", f"{KEY}/GPU-1", body(kind, at_ms, data), receiver, 1.0
    )
    delivered_at = 2.0 if status == "delivered" else None
    value = {**report(outgoing, 3, "answered 500", delivered_at), "status": status}
    return Stored(0, KEY, value)


def test_the_last_record_says_how_a_delivery_stands():
    letters = DeadLetters()
    for stored in (letter(1), letter(2, at_ms=AT_MS - 1), letter(1, receiver="pager")):
        letters.take(stored)
    assert [s.key for s in letters.dead("runner")] == [("msg_2", "runner"), ("msg_1", "runner")]
    again = read_record(0, KEY.encode(), as_retry(letter(1)))
    assert again is not None
    letters.take(again)
    assert [s.key for s in letters.retries()] == [("msg_1", "runner")]
    letters.take(letter(1, status="delivered"))
    assert list(letters.retries()) == []
    assert [s.key for s in letters.dead()] == [("msg_2", "runner"), ("msg_1", "pager")]


def test_what_was_overtaken_is_known_per_receiver_and_device():
    letters = DeadLetters()
    letters.take(letter(1))
    letters.take(letter(2, "migration.withdrawn", AT_MS + 60_000, "delivered"))
    assert letters.overtaken_by(letter(1)) == "migration.withdrawn"
    assert letters.overtaken_by(letter(3, at_ms=AT_MS + 120_000)) is None
    assert letters.overtaken_by(letter(1, receiver="pager")) is None


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(deliveries, "MAX_DEAD", 3)
    letters = DeadLetters()
    for number in range(5):
        letters.take(letter(number))
    assert [s.key[0] for s in letters.dead()] == ["msg_2", "msg_3", "msg_4"]
    assert letters.forgotten == 2


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"[]", b"null", b'{"webhook-id": 1}', b"\xff", b" " * 300_000]
)
def test_foreign_records_are_left_alone(value):
    assert read_record(0, b"lab/rig1", value) is None
    assert read_record(0, b"\xff", as_retry(letter())) is None


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", '{"type": "x"}', '{"type": "device.released", "timestamp": "", "data": {}}'],
)
def test_bodies_that_are_no_webhook_are_not_sent(text):
    assert check_body(letter()) is None
    assert check_body(Stored(0, KEY, {**letter().value, "body": text})) is not None


@dataclass
class Server:
    """Answers ``status``, keeps the ids of what came."""

    status: int = 500
    ids: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.ids.append(request.headers["webhook-id"])
        return web.Response(status=self.status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield made
    await runner.cleanup()


class Memory:
    """In Kafka's place: what was sent, by topic."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def send_and_wait(self, topic: str, value: bytes, **_: Any) -> None:
        self.sent.append((topic, orjson.loads(value)))

    def statuses(self) -> list[str]:
        return [value["status"] for topic, value in self.sent if topic == DELIVERIES]


def outbox_to(url: str, producer: Any, schedule: Schedule) -> tuple[Outbox, Deliverer]:
    outbox = Outbox(make_shared(App(producer, "", Steps(None))))
    outbox._shared.partition(0)
    receiver = Receiver.model_validate(
        {"name": "runner", "url": url, "secret": SECRET, "allow_private": True}
    )
    deliverer = outbox.deliverer = Deliverer([receiver], outbox.on_delivered, schedule=schedule)
    return outbox, deliverer


async def until(done) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.01)


async def test_a_retry_goes_out_once_however_often_it_is_asked_for(server):
    server.status, memory = 200, Memory()
    outbox, deliverer = outbox_to(server.url, memory, Schedule())
    for _ in range(3):
        assert await outbox.retry(letter())
    await until(lambda: memory.statuses() == ["delivered"])
    assert server.ids == ["msg_1"]
    assert not await outbox.retry(Stored(3, KEY, letter().value))  # another worker's partition
    assert await outbox.retry(Stored(0, "no key", letter().value))
    await deliverer.close()


async def test_a_retry_does_not_overtake_the_withdrawal_that_waits(server):
    memory = Memory()
    outbox, deliverer = outbox_to(server.url, memory, Schedule(first_seconds=(60.0,)))
    assert await outbox.retry(letter(2, "migration.withdrawn", AT_MS + 60_000))
    assert await outbox.retry(letter(1))
    assert memory.statuses() == ["dead"]
    (_, refused) = next(item for item in memory.sent if item[0] == DELIVERIES)
    assert refused["webhook-id"] == "msg_1"
    assert "on its way" in refused["error"]
    assert check_body(Stored(0, KEY, refused)) is None  # it can still be sent, later
    await deliverer.close()


def decision(number: int) -> dict[str, Any]:
    data = {"site": "lab", "node": "rig1", "device": f"GPU-{number}", "cause": "lost"}
    return {
        "decision_id": f"dec_{number}",
        "type": "migration.requested",
        "dry_run": False,
        "decided_ms": AT_MS,
        "data": data,
    }


@pytest.mark.slow
async def test_from_dead_to_delivered_by_the_command_line(own_kafka, server, capsys):
    kafka = own_kafka.address
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(n, 4, 1) for n in (NODES, DECISIONS, DELIVERIES)])
    await admin.close()

    async def cli(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, ["deliveries", *arguments, "--kafka", kafka])
        out, err = capsys.readouterr()
        return code, out, err

    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all", max_batch_size=1)
    await producer.start()
    outbox, deliverer = outbox_to(server.url, producer, Schedule(give_up_seconds=0))
    partition = outbox._shared.partition(0)
    state = partition.state("lab", "rig1", KEY)
    await outbox.save(partition, KEY, state, [decision(1), decision(2)])
    await until(lambda: not state.outbox)
    await until(lambda: not any(deliverer.depth().values()))

    code, out, _ = await cli("list", "--json")
    assert code == 0
    listed = [orjson.loads(line) for line in out.splitlines()]
    assert [v["webhook-id"] for v in listed] == ["msg_1", "msg_2"]
    assert {v["error"] for v in listed} == {"gave up: answered 500"}
    assert "body" not in listed[0]
    code, _, err = await cli("retry", "msg_9")
    assert (code, err) == (1, "msg_9: no such dead delivery\n")

    server.status = 200
    stop = False
    retries = Retries(servers(kafka), outbox.retry, lambda: True)
    following = asyncio.create_task(retries.run(lambda: stop))
    code, out, _ = await cli("retry", "msg_1")
    assert (code, out.split()[0]) == (0, "1")
    await until(lambda: server.ids.count("msg_1") == 2)
    await until(lambda: not state.outbox)
    await until(lambda: not any(deliverer.depth().values()))
    code, out, _ = await cli("list")
    assert "1 dead deliveries" in out
    assert "msg_2" in out
    code, out, _ = await cli("retry", "--all", "--receiver", "runner")
    assert code == 0
    await until(lambda: server.ids.count("msg_2") == 2)
    await until(lambda: not any(deliverer.depth().values()))
    code, out, _ = await cli("list")
    assert out == "0 dead deliveries\n"
    stop = True
    await asyncio.wait_for(following, 30)
    # A worker that starts now reads the same topic and finds nothing left to do.
    again: list[Stored] = []

    async def act(stored: Stored) -> bool:
        again.append(stored)
        return True

    second = asyncio.create_task(
        Retries(servers(kafka), act, lambda: True).run(lambda: len(again) > 0)
    )
    await asyncio.sleep(3)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert again == []
    assert server.ids == ["msg_1", "msg_2", "msg_1", "msg_2"]
    await deliverer.close()
    await producer.stop()
