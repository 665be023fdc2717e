"""A runner over a real socket, a job that follows the trainer protocol without TensorFlow."""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from runner.edge.server import build, listen, serve
from runner.settings import RunnerSettings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOKEN = "a-token-for-tests"

TINY_TRAINER = """
import fcntl, json, os, signal, sys, time
folder = os.environ["RIGCANARY_CHECKPOINT_DIR"]
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
alone = open(folder + "/alone", "a")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(folder + "/overlap", "a").write("x")
path = folder + "/checkpoint"
step = int(open(path).read()) if os.path.exists(path) else 0
ledger = open(folder + "/ledger", "a", buffering=1)
progress = open(os.environ["RIGCANARY_PROGRESS_FILE"], "a", buffering=1)
time.sleep(float(options.get("warm_up", 0)))
while not stop and step < int(options.get("steps", 10**9)):
    step += 1
    ledger.write("%d %s\\n" % (step, os.environ["RIGCANARY_DEVICE"]))
    progress.write(json.dumps({"step": step, "loss": 10 / step}) + "\\n")
    time.sleep(0.02)
time.sleep(float(options.get("slow_stop", 0)))
open(path + ".tmp", "w").write(str(step))
os.rename(path + ".tmp", path)
"""


def tiny_trainer(**options: object) -> list[str]:
    """The command of a small job: ``steps``, ``warm_up`` and ``slow_stop`` in seconds."""
    flat = [str(part) for pair in options.items() for part in pair]
    return [sys.executable, "-S", "-c", TINY_TRAINER, *flat]


def wait_for(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true answer of ``look``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = look()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {look}")


class Client:
    """Talks to a runner as people and senders do."""

    def __init__(self, url: str, token: str = TOKEN, secret: str = SECRET) -> None:
        self.url = url
        self.secret = secret
        # Plain HTTP: not loading certificates makes a client cheap to create.
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, verify=False
        )
        self.anybody = httpx.Client(base_url=url, verify=False)

    def close(self) -> None:
        self.http.close()
        self.anybody.close()

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def submit(self, **job: object) -> dict[str, Any]:
        answer = self.http.post("/v1/jobs", json={"name": "job", **job})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def job(self, job: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/jobs/{job['id']}")
        return found

    def wait_job(self, job: dict[str, Any], state: str) -> dict[str, Any]:
        """The job once it is in ``state``."""

        def look() -> Any:
            now = self.job(job)
            return now if now["state"] == state else None

        found: dict[str, Any] = wait_for(look)
        return found

    def migration(self, episode_id: str) -> dict[str, Any] | None:
        found = [m for m in self.get("/v1/migrations") if m["episode_id"] == episode_id]
        assert len(found) <= 1, found
        return found[0] if found else None

    def wait_migration(self, episode_id: str, state: str = "completed") -> dict[str, Any]:
        """The one migration of an episode once it is in ``state``."""

        def look() -> Any:
            now = self.migration(episode_id)
            return now if now is not None and now["state"] == state else None

        found: dict[str, Any] = wait_for(look)
        return found

    def webhook(
        self,
        kind: str,
        data: dict[str, Any] | None = None,
        *,
        webhook_id: str = "msg-1",
        sent: str = "2026-01-01T00:00:00Z",
        body: str | None = None,
        at: datetime | None = None,
    ) -> httpx.Response:
        """Post a webhook signed by the official library."""
        text = body or json.dumps({"type": kind, "timestamp": sent, "data": data or {}})
        at = at or datetime.now(UTC)
        signature = Webhook(self.secret).sign(webhook_id, at, text)
        return self.anybody.post(
            "/v1/webhooks",
            content=text,
            headers={
                "webhook-id": webhook_id,
                "webhook-timestamp": str(int(at.timestamp())),
                "webhook-signature": signature,
            },
        )

    def request_migration(
        self,
        node: str,
        device: str | None,
        episode_id: str = "episode-1",
        cause: str = "predicted",
        webhook_id: str | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Post ``migration.requested``."""
        data = {
            "site": "lab",
            "node": node,
            "device": device,
            "episode_id": episode_id,
            "decision_id": episode_id,
            "cause": cause,
            "risk": 0.9,
            "risk_horizon_seconds": 3600,
            "health_score": 20.0,
            "evidence": [],
            "observed_at": "2026-01-01T00:00:00Z",
            "decided_at": "2026-01-01T00:00:01Z",
        }
        return self.webhook(
            "migration.requested", data, webhook_id=webhook_id or f"msg-{episode_id}", **more
        )


def ledger(job: dict[str, Any]) -> list[tuple[int, str]]:
    """The steps that a tiny trainer did, and on which card, over all its starts."""
    lines = (Path(job["checkpoint_dir"]) / "ledger").read_text().splitlines()
    return [(int(step), device) for step, _, device in (line.partition(" ") for line in lines)]


def assert_ran_once(job: dict[str, Any]) -> None:
    """No two processes of it at a time, no step twice and none left out."""
    assert not (Path(job["checkpoint_dir"]) / "overlap").exists()
    steps = [step for step, _ in ledger(job)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.fixture
def settings(tmp_path: Path) -> RunnerSettings:
    return RunnerSettings.model_validate(
        {
            "port": 0,
            "state_dir": tmp_path / "state",
            "webhook_secret": SECRET,
            "token": TOKEN,
            "nodes": [
                {"name": "rig1", "devices": ["GPU-1a", "GPU-1b"]},
                {"name": "rig2", "devices": ["GPU-2a"]},
            ],
            "tick_seconds": 0.05,
            "settle_seconds": 15,
            "checkpoint_grace_seconds": 20,
        }
    )


class InThread:
    """A runner in a thread of the test, over a real socket."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.listener: socket.socket = listen(settings.host, settings.port)
        self.server, self.service = build(settings)
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True
        )

    def __enter__(self) -> Client:
        self._thread.start()
        wait_for(lambda: self.server.started)
        return Client(f"http://127.0.0.1:{self.listener.getsockname()[1]}")

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(40)
        self.listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def runner(settings: RunnerSettings) -> Iterator[Client]:
    with InThread(settings) as client:
        yield client
        client.close()


class Process:
    """A runner in a process of its own, forked from one that has the imports done."""

    def __init__(self, settings: RunnerSettings, **changes: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = settings.model_copy(update={"port": port, **changes})
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["runner.edge.server"])
        self.process = context.Process(target=serve, args=(settings,), daemon=False)
        self.process.start()
        self.client = Client(f"http://127.0.0.1:{port}")
        wait_for(self._answers)

    def _answers(self) -> bool:
        try:
            return self.client.http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def end(self, number: int) -> int:
        """Signal it and wait; its exit status."""
        self.client.close()
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self.process.join(40)
        status = self.process.exitcode
        self.process.close()
        assert status is not None
        return status


@pytest.fixture
def helpers() -> Any:
    """The helpers of this file, for tests that cannot import it."""
    from types import SimpleNamespace

    return SimpleNamespace(
        tiny_trainer=tiny_trainer,
        wait_for=wait_for,
        ledger=ledger,
        assert_ran_once=assert_ran_once,
        Process=Process,
        Client=Client,
        InThread=InThread,
    )
