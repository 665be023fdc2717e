"""``rigcanary runner`` as a process: its start, its ends, and what kill -9 leaves behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.errors import ConfigError
from rigcanary.config import load
from runner.edge.server import listen
from runner.settings import NodeSettings, RunnerSettings


def rigcanary(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rigcanary", "runner", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


@pytest.fixture
def three(settings: RunnerSettings) -> RunnerSettings:
    nodes = tuple(NodeSettings(name=f"rig{i}", devices=(f"GPU-{i}a",)) for i in (1, 2, 3))
    return settings.model_copy(update={"nodes": nodes})


@pytest.mark.parametrize("moment", ["placing", "checkpointing", "confirming"])
def test_kill_9_of_the_runner_loses_and_doubles_nothing(
    helpers: Any, three: RunnerSettings, moment: str
) -> None:
    nodes = three.nodes[:1] if moment == "placing" else three.nodes
    warm_up = {"warm_up": 1.5} if moment == "confirming" else {}
    first = helpers.Process(three, nodes=nodes)
    job = first.client.submit(
        command=helpers.tiny_trainer(slow_stop=0.5, **warm_up),
        constraints={"prefer": ["GPU-1a"]},
    )
    first.client.wait_job(job, "running")
    first.client.request_migration("rig1", "GPU-1a")
    first.client.wait_migration("episode-1", moment)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = helpers.Process(three)
    try:
        again = second.client.request_migration("rig1", "GPU-1a")
        assert again.json() == {"status": "duplicate", "migrations": []}
        moved = second.client.wait_migration("episode-1")
        assert moved["job"] == job["id"]
        assert moved["to"]["device"] in {"GPU-2a", "GPU-3a"}
        now = second.client.wait_job(job, "running")
        assert now["device"] == moved["to"]["device"]
        assert len(second.client.get("/v1/migrations")) == 1
        helpers.wait_for(lambda: second.client.job(job)["step"] > now["step"])
    finally:
        assert second.end(signal.SIGTERM) == 0
    helpers.assert_ran_once(now)
    cards = [device for _, device in helpers.ledger(now)]
    assert cards == sorted(cards, key=lambda card: card != "GPU-1a"), "never back to the sick card"


def test_kill_9_without_a_migration_and_again(helpers: Any, three: RunnerSettings) -> None:
    runner = helpers.Process(three)
    job = runner.client.submit(command=helpers.tiny_trainer())
    for generation in (1, 2, 3):
        now = runner.client.wait_job(job, "running")
        assert now["generation"] == generation
        runner.end(signal.SIGKILL)
        runner = helpers.Process(three)
        wait_for_generation(helpers, runner.client, job, generation + 1)
    runner.client.http.delete(f"/v1/jobs/{job['id']}")
    assert runner.client.wait_job(job, "cancelled")["ended_at"]
    points = runner.client.get(f"/v1/jobs/{job['id']}/progress")
    assert points[0]["step"] == 1
    assert {p["generation"] for p in points} >= {1, 2, 3}
    assert runner.end(signal.SIGTERM) == 0
    helpers.assert_ran_once(job)


def wait_for_generation(helpers: Any, client: Any, job: dict[str, Any], number: int) -> None:
    helpers.wait_for(lambda: client.job(job)["generation"] == number)


def test_the_command_from_its_first_line_to_its_end(tmp_path: Path, helpers: Any) -> None:
    command = [sys.executable, "-m", "rigcanary", "runner", "--port", "0", "--state", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"token file {tmp_path / 'token'}" in line
        url = line.split("runner at ")[1].split(",")[0]
        token = (tmp_path / "token").read_text().strip()
        client = helpers.Client(url, token, (tmp_path / "webhook-secret").read_text().strip())
        for name in ("token", "webhook-secret"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        helpers.wait_for(lambda: _answers(client))
        assert client.webhook("test.ping").status_code == 200
        job = client.submit(command=helpers.tiny_trainer())
        running = client.wait_job(job, "running")
        assert running["node"] == "local"
        there = json.loads((tmp_path / "jobs" / job["id"] / "run-0.json").read_text())
        second = rigcanary("--port", "0", "--state", str(tmp_path))
        assert second.returncode == 2
        assert second.stderr.strip() == (
            f"rigcanary: --state {tmp_path} is in use by another runner; "
            "stop that one, or give another folder"
        )
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
        assert token not in process.stderr.read()
    assert not Path(f"/proc/{there['pid']}").exists()
    helpers.assert_ran_once(running)


def _answers(client: Any) -> bool:
    try:
        return bool(client.http.get("/healthz").status_code == 200)
    except httpx.TransportError:
        return False


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: cannot listen .* another port"):
            listen("127.0.0.1", port)


def test_show_config_masks_secrets(tmp_path: Path) -> None:
    config = tmp_path / "runner.toml"
    config.write_text(
        'port = 1234\nwebhook_secret = ["whsec_QUJD", "whsec_REVG"]\n'
        '[[nodes]]\nname = "rig9"\ndevices = ["GPU-9"]\n'
    )
    token = tmp_path / "token"
    token.write_text("very-secret\n")
    answer = rigcanary(
        "--config",
        str(config),
        "--state",
        str(tmp_path),
        "--show-config",
        RIGCANARY_RUNNER_TOKEN_FILE=str(token),
    )
    assert answer.returncode == 0, answer.stderr
    shown = json.loads(answer.stdout)
    assert shown["port"] == 1234
    assert shown["nodes"] == [{"name": "rig9", "devices": ["GPU-9"]}]
    assert "very-secret" not in answer.stdout
    assert "whsec" not in answer.stdout
    assert shown["token"] == "**********"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"port": 70000}, "port"),
        ({"nodes": [{"name": "a b"}]}, "'a b' is not a node's name"),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "node 'a' stands twice"),
        ({"host": "not-an-ip"}, "host"),
        ({"webhook_secret": " "}, "webhook_secret"),
        ({"colour": "red"}, "colour: no such setting"),
    ],
)
def test_wrong_settings_are_named(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RunnerSettings, process="runner", overrides=value, environment={"A": "b"})
