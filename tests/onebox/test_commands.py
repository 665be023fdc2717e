"""``serve`` and ``demo`` as a person runs them: refusals, Ctrl-C at any moment, kill -9."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import psutil
import pytest
from standardwebhooks.webhooks import Webhook

from onebox import ports
from rigcanary.cli import run

ENDS_WITHIN_SECONDS = 40


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(tmp_path)}


def once(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that is refused before it starts anything."""
    code = run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


class Running:
    """A command in the foreground of nobody; ``wait_for`` reads its output."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rigcanary", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(tmp_path),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line)

    def wait_for(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not any(text in line for line in self.lines):
            assert self._process.poll() is None, "".join(self.lines)
            assert time.monotonic() < deadline, f"no {text!r} in:\n" + "".join(self.lines)
            time.sleep(0.05)

    def family(self) -> list[psutil.Process]:
        """Itself and everything it has started."""
        me = psutil.Process(self._process.pid)
        return [me, *me.children(recursive=True)]

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        code = self._process.wait(ENDS_WITHIN_SECONDS)
        self._reader.join(ENDS_WITHIN_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


def assert_gone(family: list[psutil.Process]) -> None:
    """A dead process that init has not taken note of counts as gone."""
    deadline = time.monotonic() + 20
    left = family
    while left and time.monotonic() < deadline:
        left = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.1)
    assert not left


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


@pytest.mark.parametrize(
    ("name", "option"),
    [("serve", "--mqtt-port"), ("demo", "--kafka-port"), ("serve", "--web-port")],
)
def test_a_taken_port_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: int, name: str, option: str
) -> None:
    others = {"--mqtt-port", "--kafka-port", "--runner-port", "--web-port"} - {option}
    free = [a for o in others for a in (o, "0")]
    state = str(tmp_path / "state")
    code, out, err = once(capsys, name, option, str(taken), *free, "--state", state)
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"rigcanary: {option} {taken} is taken")


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--rigs", "1"),
        ("demo", "--speed", "0"),
        ("serve", "--mqtt-port", "70000"),
        ("serve", "--webhook", "http://127.0.0.1:1/"),
        ("serve", "--webhook", "http://127.0.0.1:1/", "--webhook-secret", "abc"),
        ("demo", "--report", "/dev/null/x"),
    ],
)
def test_wrong_settings_give_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, out, err = once(capsys, *arguments)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert out == ""


def test_serve_refuses_what_its_worker_would_refuse_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RIGCANARY_WORKER_NONSENSE", "1")
    code, out, err = once(capsys, "serve", "--state", str(tmp_path / "state"))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "RIGCANARY_WORKER_NONSENSE is not a setting" in line
    assert not (tmp_path / "state").exists()


def serve_arguments(tmp_path: Path) -> tuple[list[str], list[int]]:
    chosen: list[int] = []
    arguments = ["serve", "--state", str(tmp_path / "state")]
    for option in ("--mqtt-port", "--kafka-port", "--runner-port", "--web-port"):
        chosen.append(ports.free_port(set(chosen)))
        arguments += [option, str(chosen[-1])]
    return arguments, chosen


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("mqtt: starting", signal.SIGINT),
        ("worker: starting", signal.SIGTERM),
        ("bridge: ready", signal.SIGKILL),
    ],
)
def test_serve_ends_everything_at_any_moment(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    arguments, chosen = serve_arguments(tmp_path)
    serve = Running(tmp_path, *arguments)
    serve.wait_for(moment)
    family = serve.family()
    code = serve.end(number)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0), "".join(serve.lines)
    assert_gone(family)
    assert all(ports.is_free(port) for port in chosen)
    assert not any("Traceback" in line for line in serve.lines if "|" not in line)


def test_a_state_folder_is_used_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, _ = serve_arguments(tmp_path)
    serve = Running(tmp_path, *arguments)
    serve.wait_for("kafka: ready")
    family = serve.family()
    second, _ = serve_arguments(tmp_path)
    code, _, err = once(capsys, *second)
    assert code == 2
    assert "is in use by another rigcanary" in err
    assert serve.end(signal.SIGINT) == 0
    assert_gone(family)


def test_demos_side_by_side_end_with_ctrl_c(tmp_path: Path) -> None:
    demos = [Running(tmp_path, "demo", "--plain") for _ in range(2)]
    for demo in demos:
        demo.wait_for("worker: starting")
    families = [demo.family() for demo in demos]
    for demo, family in zip(demos, families, strict=True):
        assert demo.end(signal.SIGINT) == 130, "".join(demo.lines)
        assert_gone(family)
        assert "interrupted" in demo.lines[-1]
    assert not list(tmp_path.glob("rigcanary-demo-*"))  # nothing of the state is left


class _Hook(BaseHTTPRequestHandler):
    """A receiver that keeps what it was sent."""

    received: ClassVar[list[tuple[dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((dict(self.headers.items()), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_serve_is_what_its_ready_line_says(tmp_path: Path, hook: ThreadingHTTPServer) -> None:
    arguments, chosen = serve_arguments(tmp_path)
    secret = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    url = f"http://127.0.0.1:{hook.server_port}/hook"
    serve = Running(tmp_path, *arguments, "--webhook", url, "--webhook-secret", secret)
    serve.wait_for('{"mqtt"', 320)
    ready = json.loads(next(line for line in serve.lines if line.startswith('{"mqtt"')))
    assert list(ready) == ["mqtt", "kafka", "runner", "web", "token_file"]
    mqtt_port, kafka_port, runner_port, web_port = chosen
    assert ready["mqtt"] == f"127.0.0.1:{mqtt_port}"
    assert ready["kafka"] == f"127.0.0.1:{kafka_port}"
    assert ready["runner"] == f"http://127.0.0.1:{runner_port}"
    assert ready["web"] == f"http://127.0.0.1:{web_port}"
    token = Path(ready["token_file"]).read_text().strip()
    assert Path(ready["token_file"]).stat().st_mode & 0o077 == 0
    assert httpx.get(f"{ready['web']}/healthz").status_code == 200
    jobs = f"{ready['runner']}/v1/jobs"
    assert httpx.get(jobs, headers={"Authorization": f"Bearer {token}"}).json() == []
    assert httpx.get(jobs).status_code == 401
    family = serve.family()
    listening = [c.laddr for p in family for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert set(chosen) <= {address.port for address in listening}
    deadline = time.monotonic() + 30
    while not _Hook.received and time.monotonic() < deadline:
        time.sleep(0.1)
    headers, body = _Hook.received[0]
    Webhook(secret).verify(body, headers)
    assert json.loads(body)["type"] == "test.ping"
    assert serve.end(signal.SIGTERM) == 0
    assert_gone(family)
    assert secret not in "".join(serve.lines)
