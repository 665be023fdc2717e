"""Other people's programs take our webhooks: a real Alertmanager, and the examples' receivers."""

import asyncio
import base64
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from contract.times import rfc3339
from stream.edge.webhook import Deliverer, Delivery, Outgoing, Schedule, body
from stream.receivers import Receiver

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
OTHER = "whsec_" + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode()
SOON = Schedule(first_seconds=(0.2,) * 20, then_seconds=1.0)
AM_CONFIG = """
route: {{receiver: us, group_by: [alertname, device], group_wait: 0s, group_interval: 1s}}
receivers: [{{name: us, webhook_configs: [{{url: '{url}', send_resolved: true}}]}}]
"""


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        found: bytes = response.read()
        return found


async def wait_until(done: Callable[[], Any], seconds: float = 60.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := done()):
            await asyncio.sleep(0.1)
    return found


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


class Sender:
    """A deliverer with one receiver, and what it reported."""

    def __init__(self, **receiver: Any) -> None:
        self.reports: list[Delivery] = []
        settings = {"name": "x", "allow_private": True, **receiver}
        self.deliverer = Deliverer([Receiver.model_validate(settings)], self._note, schedule=SOON)

    async def _note(self, delivery: Delivery) -> None:
        self.reports.append(delivery)

    async def send(self, number: int, kind: str, **data: Any) -> Delivery:
        now_ms = time.time_ns() // 1_000_000
        card = {"site": "lab", "node": "rig1", "device": "GPU-1", "episode_id": "ep_1"}
        raw = body(kind, now_ms, {**card, "decided_at": rfc3339(now_ms), **data})
        self.deliverer.submit(Outgoing(f"msg_{number}", kind, "lab", "lab/rig1/GPU-1", raw, "x"))
        return await self.next()

    async def next(self) -> Delivery:
        await wait_until(lambda: self.reports)
        return self.reports.pop()


@pytest.fixture
async def notified() -> AsyncIterator[tuple[str, list[Any]]]:
    """What an Alertmanager tells its own receiver: its URL, and ``(status, labels)``."""
    heard: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        for alert in orjson.loads(await request.read())["alerts"]:
            heard.append((alert["status"], alert["labels"]))
        return web.Response(status=200)

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/", heard
    await runner.cleanup()


@pytest.fixture
def alertmanager(
    tmp_path: Path, free_port: Callable[[], int], notified: tuple[str, list[Any]]
) -> Iterator[str]:
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        pytest.skip("no Alertmanager (apt-get install prometheus-alertmanager)")
    (tmp_path / "am.yml").write_text(AM_CONFIG.format(url=notified[0]))
    port = free_port()
    process = subprocess.Popen(
        [
            program,
            f"--config.file={tmp_path / 'am.yml'}",
            f"--storage.path={tmp_path}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


async def test_an_alertmanager_shows_the_alert_and_its_resolution(
    alertmanager: str, notified: tuple[str, list[Any]]
) -> None:
    def active() -> list[Any]:
        found: list[Any] = orjson.loads(get(f"{alertmanager}/api/v2/alerts"))
        return found

    await wait_until(lambda: answers(f"{alertmanager}/-/ready"))
    sender = Sender(url=f"{alertmanager}/api/v2/alerts", format="alertmanager")
    sender.deliverer.ping()
    asked = {"cause": "predicted", "risk": 0.9, "health_score": 12.5}
    assert (await sender.send(1, "migration.requested", **asked))["status"] == "delivered"
    (alert,) = await wait_until(active)
    labels = {
        "alertname": "RigcanaryDeviceUnhealthy",
        "site": "lab",
        "node": "rig1",
        "device": "GPU-1",
        "severity": "warning",
    }
    assert alert["labels"] == labels
    assert alert["status"]["state"] == "active"
    assert alert["annotations"]["episode_id"] == "ep_1"
    _, heard = notified
    await wait_until(lambda: ("firing", labels) in heard)
    # A repetition changes nothing.
    assert (await sender.send(1, "migration.requested", **asked))["status"] == "delivered"
    assert len(active()) == 1
    # The episode ends, with another cause than it was reported with.
    released = {"cause": "threshold", "reason": "no sign for 240 minutes"}
    assert (await sender.send(2, "device.released", **released))["status"] == "delivered"
    await wait_until(lambda: not active())
    await wait_until(lambda: ("resolved", labels) in heard)
    assert all(heard_labels == labels for _, heard_labels in heard)
    await sender.deliverer.close()


def python_receiver(tmp_path: Path) -> tuple[list[str], Path]:
    return [sys.executable, str(ROOT / "examples" / "receiver.py")], tmp_path


def node_receiver(tmp_path: Path) -> tuple[list[str], Path]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not installed")
    found = subprocess.run(
        [npm, "install", "--silent", "--no-audit", "--no-fund", "standardwebhooks"],
        cwd=tmp_path,
        capture_output=True,
        timeout=100,
        check=False,
    )
    if found.returncode != 0:
        pytest.skip("npm cannot install standardwebhooks here")
    return [node, str(ROOT / "examples" / "receiver.mjs")], tmp_path


@pytest.mark.parametrize("make", [python_receiver, node_receiver])
async def test_the_examples_verify_with_the_official_libraries(
    make: Callable[[Path], tuple[list[str], Path]], tmp_path: Path, free_port: Callable[[], int]
) -> None:
    command, folder = make(tmp_path)
    port = free_port()
    process = subprocess.Popen(
        [*command, str(port)],
        cwd=folder,
        env={**os.environ, "RIGCANARY_WEBHOOK_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    url = f"http://127.0.0.1:{port}/"
    good, rotating, wrong = (
        Sender(url=url, secret=secret) for secret in (SECRET, f"{OTHER} {SECRET}", OTHER)
    )
    try:
        for number in (1, 1, 2):  # an id that comes twice has one effect
            delivery = await good.send(number, "migration.requested")
            assert delivery["status"] == "delivered"
        assert (await rotating.send(3, "device.released"))["status"] == "delivered"
        wrong.deliverer.submit(
            Outgoing("msg_4", "test", "lab", "a", body("test", 0, {}), "x", created_at=1.0)
        )
        refused = await wrong.next()
        assert (refused["status"], refused["error"]) == ("dead", "gave up: answered 401")
    finally:
        process.kill()
        out, _ = process.communicate()
        for sender in (good, rotating, wrong):
            await sender.deliverer.close()
    assert out.splitlines() == [
        "migration.requested GPU-1",
        "migration.requested GPU-1",
        "device.released GPU-1",
    ]


@pytest.mark.parametrize("name", ["receiver.py", "receiver.mjs"])
def test_the_examples_are_short(name: str) -> None:
    lines = (ROOT / "examples" / name).read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30
