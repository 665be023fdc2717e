"""The deliverer against real HTTP servers that behave badly."""

import asyncio
import base64
import json
import logging
import random
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from stream.edge.webhook import Deliverer, Hooks, Outgoing, Schedule, body
from stream.edge.webhook_http import OUTCOMES, judge, retry_after_seconds
from stream.receivers import Receiver

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
FAST = Schedule(first_seconds=(0.005,) * 6, then_seconds=0.01, max_retry_after_seconds=0.05)
BODY = body("migration.requested", 1_767_225_600_000, {"site": "lab", "device": "GPU-1"})


@dataclass
class Receiving:
    """A receiver whose answer to each request is the next of ``script`` (the last repeats)."""

    script: list
    requests: list = field(default_factory=list)
    acted: set = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {k.lower(): v for k, v in request.headers.items()}
        self.requests.append((headers, raw))
        step = self.script[min(len(self.requests), len(self.script)) - 1]
        if callable(step):
            return await step(self, request, headers)
        if isinstance(step, tuple):
            status, extra = step
        else:
            status, extra = step, {}
        if 200 <= status < 300:
            self.acted.add(headers["webhook-id"])
        return web.Response(status=status, headers=extra)

    @property
    def ids(self):
        return [headers["webhook-id"] for headers, _ in self.requests]


class Bench:
    """Servers, deliverers and what was reported, closed at the end of the test."""

    def __init__(self):
        self.delivered = []
        self.runners = []
        self.deliverers = []
        self.changed = asyncio.Event()

    async def serve(self, script, path="/hook"):
        receiving = Receiving(script)
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", receiving.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self.runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return receiving, f"http://127.0.0.1:{runner.addresses[0][1]}{path}"

    async def on_delivered(self, delivery):
        self.delivered.append(delivery)
        self.changed.set()

    def deliverer(self, *receivers, on_delivered=None, **kw):
        kw.setdefault("schedule", FAST)
        kw.setdefault("rng", random.Random(7))
        made = Deliverer(receivers, on_delivered or self.on_delivered, **kw)
        self.deliverers.append(made)
        return made

    async def until(self, count):
        async with asyncio.timeout(20):
            while len(self.delivered) < count:
                self.changed.clear()
                await self.changed.wait()

    async def close(self):
        for deliverer in self.deliverers:
            await deliverer.close()
        for runner in self.runners:
            await runner.cleanup()


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    await made.close()


def local(url, name="runner", **kw):
    return Receiver.model_validate(
        {"name": name, "url": url, "secret": SECRET, "allow_private": True, **kw}
    )


def out(number=1, device="lab/rig1/GPU-1", receiver="runner", **kw):
    return Outgoing(f"msg_{number}", "migration.requested", "lab", device, BODY, receiver, **kw)


async def test_the_official_library_verifies_each_attempt(bench):
    receiving, url = await bench.serve([500, 500, 200])
    bench.deliverer(local(url)).submit(out())
    await bench.until(1)
    assert receiving.ids == ["msg_1"] * 3
    for headers, raw in receiving.requests:
        data = Webhook(SECRET).verify(raw, headers)
        assert data == {
            "type": "migration.requested",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "data": {"site": "lab", "device": "GPU-1"},
        }
        assert headers["content-type"] == "application/json"
    headers, raw = receiving.requests[0]
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(raw + b" ", headers)
    (delivery,) = bench.delivered
    assert set(delivery) == {
        "webhook-id",
        "receiver",
        "type",
        "attempt",
        "status",
        "delivered_at",
        "error",
        "site",
        "node",
        "device",
        "timestamp",
        "created_at",
        "body",
    }
    assert (delivery["status"], delivery["attempt"], delivery["error"]) == ("delivered", 3, None)


class LateClock:
    """Wall clock that jumps an hour at each look, to show that each attempt is signed anew."""

    def __init__(self, step):
        self.now = 1_767_225_600.0
        self.step = step
        self.slept = []

    def time(self):
        self.now += self.step
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def test_each_attempt_carries_its_own_time(bench):
    receiving, url = await bench.serve([500, 503, 200])
    bench.deliverer(local(url), clock=LateClock(10)).submit(out())
    await bench.until(1)
    stamps = [int(headers["webhook-timestamp"]) for headers, _ in receiving.requests]
    assert stamps == sorted(set(stamps))
    signatures = {headers["webhook-signature"] for headers, _ in receiving.requests}
    assert len(signatures) == 3


async def test_same_decision_three_times_acts_once(bench):
    # alertmanager#4108, #2447: 5xx then recovery made duplicates.
    receiving, url = await bench.serve([500, 500, 200])
    deliverer = bench.deliverer(local(url))
    assert [deliverer.submit(out()) for _ in range(3)] == [True, True, True]
    await bench.until(1)
    assert receiving.ids == ["msg_1"] * 3
    assert receiving.acted == {"msg_1"}
    assert len(bench.delivered) == 1
    assert deliverer.depth() == {"runner": 0}


async def slow(receiving, request, headers):
    receiving.acted.add(headers["webhook-id"])
    await asyncio.sleep(30)
    return web.Response(status=200)


async def test_acts_but_answers_after_the_time_out(bench):
    receiving, url = await bench.serve([slow, 200])
    bench.deliverer(local(url, timeout_seconds=1)).submit(out())
    await bench.until(1)
    # It acted twice under one id: the id is what lets it act once.
    assert receiving.ids == ["msg_1", "msg_1"]
    assert bench.delivered[0]["attempt"] == 2


async def truncated(receiving, request, headers):
    response = web.StreamResponse(status=200, headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half")
    request.transport.close()
    return response


async def hangs_up(receiving, request, headers):
    request.transport.close()
    return web.Response(status=200)


@pytest.mark.parametrize("step", [truncated, hangs_up])
async def test_closing_mid_answer_is_no_success(bench, step):
    receiving, url = await bench.serve([step, 204])
    outcomes = []
    hooks = Hooks(on_attempt=lambda receiver, outcome, seconds: outcomes.append(outcome))
    bench.deliverer(local(url), hooks=hooks).submit(out())
    await bench.until(1)
    assert outcomes == ["broken_answer", "delivered"]
    assert receiving.ids == ["msg_1"] * 2


async def endless(receiving, request, headers):
    response = web.StreamResponse(status=200)
    await response.prepare(request)
    for _ in range(100):
        await response.write(b"x" * 10_000)
    return response


async def test_an_endless_answer_is_cut_off(bench):
    _, url = await bench.serve([endless])
    bench.deliverer(local(url)).submit(out())
    await bench.until(1)
    assert bench.delivered[0]["attempt"] == 1


async def test_redirects_are_not_followed(bench):
    elsewhere, target = await bench.serve([200])
    _, url = await bench.serve([(302, {"Location": target}), (308, {"Location": target}), 200])
    bench.deliverer(local(url)).submit(out())
    await bench.until(1)
    assert bench.delivered[0]["attempt"] == 3
    assert elsewhere.requests == []


async def test_retry_after_is_waited_for_by_all_of_that_receiver(bench):
    clock = LateClock(0)
    _, url = await bench.serve([(429, {"Retry-After": "90"}), 200])
    deliverer = bench.deliverer(local(url, max_concurrent=1), clock=clock, schedule=Schedule())
    deliverer.submit(out(1, "lab/rig1/a"))
    deliverer.submit(out(2, "lab/rig1/b"))
    await bench.until(2)
    assert {d["attempt"] for d in bench.delivered} == {1, 2}
    assert all(seconds >= 89 for seconds in clock.slept), clock.slept


async def test_retry_after_is_bounded(bench):
    _, url = await bench.serve([(503, {"Retry-After": "999999999"}), 200])
    bench.deliverer(local(url)).submit(out())
    await bench.until(1)
    assert bench.delivered[0]["status"] == "delivered"


async def test_gone_disables_the_receiver_and_says_so(bench, caplog):
    receiving, url = await bench.serve([410])
    deliverer = bench.deliverer(local(url))
    with caplog.at_level(logging.WARNING):
        deliverer.submit(out(1))
        deliverer.submit(out(2))
        await bench.until(2)
        deliverer.submit(out(3, "lab/rig2/x"))
        await bench.until(3)
    assert len(receiving.requests) == 1
    assert [d["status"] for d in bench.delivered] == ["dead"] * 3
    assert all("410" in d["error"] for d in bench.delivered)
    # What it misses from now on is a dead letter too, not forgotten.
    assert deliverer.receivers_for("migration.requested", "lab", "critical") == ["runner"]
    assert "410 Gone and is disabled" in caplog.text


async def test_after_a_day_it_is_given_up(bench):
    clock = LateClock(0)
    _, url = await bench.serve([500])
    bench.deliverer(local(url), clock=clock, schedule=Schedule()).submit(out())
    await bench.until(1)
    (delivery,) = bench.delivered
    assert delivery["status"] == "dead"
    assert delivery["delivered_at"] is None
    assert "answered 500" in delivery["error"]
    waits = clock.slept
    for wait, about in zip(waits, (1, 2, 5, 10, 30, 60, 300, 300), strict=False):
        assert 0.8 * about <= wait <= 1.2 * about
    assert len({round(w / 300, 6) for w in waits[6:]}) > 100  # jitter: no two alike
    assert 86_400 - 360 < sum(waits) <= 86_400


async def test_the_day_counts_over_restarts(bench):
    clock = LateClock(0)
    receiving, url = await bench.serve([500])
    deliverer = bench.deliverer(local(url), clock=clock, schedule=Schedule())
    deliverer.submit(out(created_at=clock.now - 86_399.9))
    await bench.until(1)
    assert len(receiving.requests) == 1
    assert bench.delivered[0]["status"] == "dead"


async def test_restart_sends_the_same_id_again(bench):
    receiving, url = await bench.serve([500, 500, 500, 200])
    first = bench.deliverer(local(url))
    first.submit(out())
    async with asyncio.timeout(10):
        while not receiving.requests:
            await asyncio.sleep(0.005)
    await first.close()
    assert bench.delivered == []
    assert not first.submit(out(2))
    bench.deliverer(local(url)).submit(out())
    await bench.until(1)
    assert set(receiving.ids) == {"msg_1"}


async def test_order_of_one_device_is_kept_while_others_go_on(bench):
    async def one_device_fails(receiving, request, headers):
        number = int(headers["webhook-id"].removeprefix("msg_"))
        failed = receiving.ids.count(headers["webhook-id"]) <= 3
        return web.Response(status=500 if number < 5 and failed else 200)

    receiving, url = await bench.serve([one_device_fails])
    deliverer = bench.deliverer(local(url))
    for number in range(5):
        deliverer.submit(out(number, "lab/rig1/a"))
    for number in range(5, 10):
        deliverer.submit(out(number, f"lab/rig1/{number}"))
    await bench.until(10)
    order = [d["webhook-id"] for d in bench.delivered]
    assert [i for i in order if i < "msg_5"] == [f"msg_{n}" for n in range(5)]
    assert order.index("msg_4") > order.index("msg_9")
    attempts = [i for i in receiving.ids if i < "msg_5"]
    assert attempts == sorted(attempts)


async def test_a_dead_receiver_delays_no_other(bench):
    _, good = await bench.serve([200])
    dead = "http://127.0.0.1:1/hook"
    deliverer = bench.deliverer(
        local(good), local(dead, name="dead"), schedule=Schedule(first_seconds=(60.0,))
    )
    assert deliverer.receivers_for("migration.requested", "lab", "critical") == ["runner", "dead"]
    deliverer.submit(out(1, receiver="dead"))
    for number in range(20):
        deliverer.submit(out(number))
    await bench.until(20)
    assert deliverer.depth() == {"runner": 0, "dead": 1}


async def test_requests_in_flight_are_bounded(bench):
    now, peak = 0, 0

    async def counting(receiving, request, headers):
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.01)
        now -= 1
        return web.Response(status=200)

    _, url = await bench.serve([counting])
    deliverer = bench.deliverer(local(url, max_concurrent=3))
    for number in range(30):
        deliverer.submit(out(number, f"lab/rig1/{number}"))
    await bench.until(30)
    assert 1 < peak <= 3


async def test_a_full_queue_refuses_until_there_is_room_and_nothing_overtakes(bench):
    _, url = await bench.serve([200])
    backlog = [out(n, f"lab/rig1/{n % 3}") for n in range(50)]
    accepted: list[Outgoing] = []

    def offer(receiver):
        # What the worker does: everything undelivered again, oldest first.
        for entry in backlog[len(accepted) :]:
            if not deliverer.submit(entry):
                return
            accepted.append(entry)

    deliverer = bench.deliverer(local(url), capacity=8, hooks=Hooks(on_room=offer))
    offer("runner")
    assert len(accepted) == 8
    assert not deliverer.submit(backlog[20])
    await bench.until(50)
    for device in range(3):
        ids = [
            d["webhook-id"]
            for d in bench.delivered
            if int(d["webhook-id"].removeprefix("msg_")) % 3 == device
        ]
        assert ids == [f"msg_{n}" for n in range(50) if n % 3 == device]


async def test_withdrawn_webhooks_are_not_sent_and_not_reported(bench):
    receiving, url = await bench.serve([500])
    deliverer = bench.deliverer(local(url), schedule=Schedule(first_seconds=(60.0,)))
    deliverer.ping()
    for number in range(3):
        deliverer.submit(out(number, "lab/rig1/a"))
    deliverer.submit(out(7, "lab/rig2/a"))
    while len(receiving.requests) < 3:
        await asyncio.sleep(0.005)
    deliverer.withdraw(lambda key: key.startswith("lab/rig1/"))
    assert deliverer.depth() == {"runner": 2}  # the ping and rig2's
    # The partition comes back: the same webhooks, from the start, in order.
    receiving.script = [200]
    for number in range(3):
        assert deliverer.submit(out(number, "lab/rig1/a"))
    await bench.until(3)
    assert [d["webhook-id"] for d in bench.delivered] == ["msg_0", "msg_1", "msg_2"]


async def test_withdrawing_from_within_a_report(bench):
    _, url = await bench.serve([200])

    async def moves_away(delivery):
        deliverer.withdraw(lambda key: key.startswith("lab/rig1/"))
        await bench.on_delivered(delivery)

    crashed: list[BaseException] = []
    deliverer = bench.deliverer(
        local(url), on_delivered=moves_away, hooks=Hooks(on_crash=crashed.append)
    )
    deliverer.submit(out(1))
    deliverer.submit(out(2))
    await bench.until(1)
    assert deliverer.submit(out(3, "lab/rig2/a"))
    await bench.until(2)
    assert [d["webhook-id"] for d in bench.delivered] == ["msg_1", "msg_3"]
    assert crashed == []


async def test_a_receiver_taken_out_of_the_settings_is_reported(bench):
    bench.deliverer().submit(out(receiver="old"))
    await bench.until(1)
    assert bench.delivered[0]["status"] == "dead"
    assert bench.delivered[0]["attempt"] == 0
    assert "'old' is not configured" in bench.delivered[0]["error"]


async def test_ping_until_the_first_success(bench):
    receiving, url = await bench.serve([500, 404, 200])
    _, silent = await bench.serve([500])
    fine: asyncio.Queue[str] = asyncio.Queue()
    deliverer = bench.deliverer(
        local(url),
        local(silent, name="silent"),
        local(url, name="off", enabled=False),
        hooks=Hooks(on_ping_ok=fine.put),
    )
    deliverer.ping()
    assert await asyncio.wait_for(fine.get(), 10) == "runner"
    assert fine.empty()
    assert len(set(receiving.ids)) == 1
    headers, raw = receiving.requests[-1]
    assert Webhook(SECRET).verify(raw, headers)["type"] == "test.ping"
    assert bench.delivered == []


async def test_on_delivered_is_awaited_before_the_next_of_the_device(bench):
    receiving, url = await bench.serve([200])
    gate = asyncio.Event()

    async def slowly(delivery):
        await gate.wait()
        await bench.on_delivered(delivery)

    deliverer = bench.deliverer(local(url), on_delivered=slowly)
    deliverer.submit(out(1))
    deliverer.submit(out(2))
    while not receiving.requests:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert receiving.ids == ["msg_1"]
    assert deliverer.depth() == {"runner": 2}
    gate.set()
    await bench.until(2)


async def test_an_owner_that_fails_is_told(bench):
    _, url = await bench.serve([200])
    crashed: asyncio.Queue[BaseException] = asyncio.Queue()

    async def fails(delivery):
        raise ConnectionError("Kafka is gone")

    bench.deliverer(
        local(url), on_delivered=fails, hooks=Hooks(on_crash=crashed.put_nowait)
    ).submit(out())
    assert str(await asyncio.wait_for(crashed.get(), 10)) == "Kafka is gone"


async def test_logs_hold_neither_secret_nor_path(bench, caplog):
    _, url = await bench.serve(
        [500, (302, {"Location": "http://127.0.0.1:1/"}), hangs_up, 200], path="/hook/token123"
    )
    with caplog.at_level(logging.DEBUG):
        bench.deliverer(local(url)).submit(out())
        await bench.until(1)
    text = caplog.text + repr(bench.delivered) + repr(out())
    assert "answers again" in text
    for hidden in (SECRET, SECRET[6:], "token123", 'GPU-1"'):
        assert hidden not in text


def test_bodies_stay_under_20_kb():
    evidence = [
        {"sensor": f"s{i}" * 20, "value": 1.0, "baseline": 1.0, "contribution": i / 500}
        for i in range(500)
    ]
    encoded = body("migration.requested", 0, {"device": "GPU-1", "evidence": evidence})
    assert len(encoded) < 20_000
    kept = json.loads(encoded)["data"]["evidence"]
    assert kept[0]["contribution"] == 499 / 500
    with pytest.raises(ValueError, match="20000"):
        body("migration.requested", 0, {"reason": "x" * 20_000})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("1e9", None),
        ("٣", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(text, seconds):
    assert retry_after_seconds(text, 1_767_225_600.0) == seconds


def test_only_2xx_is_success():
    for status in range(200, 600):
        outcome = judge(status, None).outcome
        assert outcome in OUTCOMES
        assert (outcome == "delivered") == (status < 300)
