"""A receiver cannot lead the worker into its own network (SSRF), whatever DNS says."""

import asyncio
import base64
import socket

import pytest
from aiohttp import web

from stream.edge.addresses import AddressRefused, public_socket
from stream.edge.webhook import Deliverer, Hooks, Outgoing, Schedule, body
from stream.receivers import Receiver

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def info(address, port=80):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sockaddr = (address, port, 0, 0) if ":" in address else (address, port)
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", sockaddr


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1", "::ffff:10.0.0.1"]
)
def test_no_socket_to_a_private_address(address):
    with pytest.raises(AddressRefused):
        public_socket(info(address))


def test_a_socket_to_a_public_address():
    public_socket(info("8.8.8.8")).close()


def receiver_at(url, **kw):
    return Receiver.model_validate({"name": "evil", "url": url, "secret": SECRET, **kw})


@pytest.fixture
async def victim():
    """A server on loopback that counts what reaches it; gives its port and the hits."""
    hits = []

    async def handle(request):
        hits.append(request.path)
        return web.Response(status=200)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1], hits
    await runner.cleanup()


async def outcome_of(receiver):
    """Outcome of the first attempt."""
    outcomes: asyncio.Queue[str] = asyncio.Queue()

    async def ignore(delivery):
        return None

    hooks = Hooks(on_attempt=lambda name, outcome, seconds: outcomes.put_nowait(outcome))
    deliverer = Deliverer([receiver], ignore, schedule=Schedule(first_seconds=(60.0,)), hooks=hooks)
    deliverer.submit(Outgoing("msg_1", "test", "lab", "lab/a", body("t.x", 0, {}), receiver.name))
    try:
        return await asyncio.wait_for(outcomes.get(), 10)
    finally:
        await deliverer.close()


def fake_dns(monkeypatch, answers):
    """``getaddrinfo`` of the running loop gives the next list of ``answers`` at each call."""
    asked = []

    async def getaddrinfo(host, port, **kw):
        asked.append(host)
        addresses = answers[min(len(asked), len(answers)) - 1]
        return [info(address, port) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize(
    "answer", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["::ffff:127.0.0.1"], ["169.254.169.254"]]
)
async def test_a_name_that_leads_inside_is_refused(victim, monkeypatch, answer):
    port, hits = victim
    asked = fake_dns(monkeypatch, [answer])
    receiver = receiver_at(f"http://hooks.example.org:{port}/x")
    assert await outcome_of(receiver) == "refused_address"
    assert asked == ["hooks.example.org"]
    assert hits == []


async def test_a_second_dns_answer_does_not_get_through(victim, monkeypatch):
    # Rebinding: a check before the request would have seen the first, public answer.
    port, hits = victim
    fake_dns(monkeypatch, [["8.8.8.8"], ["127.0.0.1"]])
    await asyncio.get_running_loop().getaddrinfo("hooks.example.org", port)
    receiver = receiver_at(f"http://hooks.example.org:{port}/x")
    assert await outcome_of(receiver) == "refused_address"
    assert hits == []


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f.1", "0177.0.0.1"])
async def test_odd_spellings_of_loopback_do_not_get_through(victim, host):
    port, hits = victim
    receiver = receiver_at(f"http://{host}:{port}/x")
    assert await outcome_of(receiver) in ("refused_address", "connect", "dns")
    assert hits == []


async def test_allowed_when_meant(victim, monkeypatch):
    port, hits = victim
    fake_dns(monkeypatch, [["127.0.0.1"]])
    receiver = receiver_at(f"http://runner.lan:{port}/x", allow_private=True)
    assert await outcome_of(receiver) == "delivered"
    assert hits == ["/x"]


async def test_a_proxy_from_the_environment_is_not_used(victim, monkeypatch):
    port, hits = victim
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    fake_dns(monkeypatch, [["127.0.0.1"]])
    receiver = receiver_at("http://hooks.example.org/x")
    assert await outcome_of(receiver) == "refused_address"
    assert hits == []


async def test_a_name_that_does_not_resolve(monkeypatch):
    async def getaddrinfo(host, port, **kw):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    receiver = receiver_at("http://hooks.example.invalid/x")
    assert await outcome_of(receiver) == "dns"
