"""What people use: ``rigcanary jobs``, the page with the curves, logs; and the pace of requests."""

import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from contract.errors import ConfigError, RigcanaryError
from rigcanary.commands import jobs as command
from runner.edge.pace import MAX_CLIENTS, Pace
from runner.settings import RunnerSettings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "person-token"
    path.write_text("a-token-for-tests\n")
    return path


def test_the_command_from_submit_to_cancel(
    runner: Any, helpers: Any, token_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {
        "name": "mine",
        "command": ["sh", "-c", "echo hello; exec \"$@\"", "sh", *helpers.tiny_trainer()],
        "constraints": {"prefer": ["GPU-1a"]},
    }  # fmt: skip
    description = tmp_path / "job.json"
    description.write_text(json.dumps(body))
    with typer.FileText(description.open("rb"), encoding="utf-8") as file:
        command.submit(file, runner.url, token_file)
    job = {"id": capsys.readouterr().out.strip()}
    runner.wait_job(job, "running")
    helpers.wait_for(lambda: (runner.job(job)["step"] or 0) > 5)
    command.list_jobs(runner.url, token_file, 100, as_json=False)
    line = capsys.readouterr().out
    assert f"{job['id']}  running  mine  rig1/GPU-1a  step " in line
    assert "steps/s  goodput " in line
    runner.request_migration("rig1", "GPU-1a")
    runner.wait_migration("episode-1")
    command.show(job["id"], runner.url, token_file, as_json=False)
    story = capsys.readouterr().out
    assert "off rig1/GPU-1a (predicted): completed" in story
    assert "checkpoint done" in story
    command.logs(job["id"], runner.url, token_file, rank=0)
    assert capsys.readouterr().out == "hello\nhello\n"
    command.cancel(job["id"], runner.url, token_file)
    ended = runner.wait_job(job, "cancelled")
    assert 0 < ended["goodput"] <= 1
    with pytest.raises(RigcanaryError, match="there is no job 'nothing'"):
        command.cancel("nothing", runner.url, token_file)


def test_what_a_person_gets_wrong_is_named(runner: Any, token_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file .* names the file in its log"):
        command.list_jobs(runner.url, tmp_path / "none", 100, as_json=True)
    with pytest.raises(ConfigError, match="is no URL"):
        command.list_jobs("localhost:1", token_file, 100, as_json=True)
    with pytest.raises(RigcanaryError, match="no answer .* is this its address"):
        command.list_jobs("http://127.0.0.1:1", token_file, 100, as_json=True)
    token_file.write_text("wrong")
    with pytest.raises(RigcanaryError, match="a bearer token is needed"):
        command.list_jobs(runner.url, token_file, 100, as_json=True)


def test_a_person_s_quarantine_moves_the_job_and_is_asked_once(runner: Any, helpers: Any) -> None:
    job = runner.submit(command=helpers.tiny_trainer(), constraints={"prefer": ["GPU-1a"]})
    runner.wait_job(job, "running")
    card = {"site": "lab", "node": "rig1", "device": "GPU-1a", "episode_id": "e", "reason": "x"}
    by_policy = runner.webhook("device.quarantined", card, webhook_id="q-0").json()
    assert by_policy == {"status": "accepted", "migrations": []}
    assert len(runner.webhook("device.quarantined", card | {"by": "kim"}).json()["migrations"]) == 1
    again = runner.webhook("device.quarantined", card | {"by": "kim"})
    assert again.json() == {"status": "duplicate", "migrations": []}
    moved = runner.wait_migration("e")
    assert (moved["cause"], moved["job"]) == ("manual", job["id"])
    assert runner.wait_job(job, "running")["device"] != "GPU-1a"
    helpers.assert_ran_once(job)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_page_in_a_browser(runner: Any, helpers: Any, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    hostile = "<img src=x onerror=document.title='owned'>"
    job = runner.submit(name=hostile, command=helpers.tiny_trainer())
    runner.wait_job(job, "running")
    helpers.wait_for(lambda: (runner.job(job)["step"] or 0) > 20)

    def dom(url: str) -> str:
        return subprocess.run(
            [
                CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=2000",
                "--dump-dom", url,
            ],
            capture_output=True, text=True, check=True, timeout=90,
        ).stdout  # fmt: skip

    closed = dom(f"{runner.url}/jobs")
    assert "Give the token to look." in closed
    assert "<article>" not in closed
    html = dom(f"{runner.url}/jobs#token=a-token-for-tests")
    assert html.count("<article>") == 1
    assert html.count("<polyline") == 1
    assert "&lt;img src=x" in html
    assert "<img" not in html
    assert "<title>rigcanary · jobs</title>" in html
    assert "goodput" in html
    answer = runner.anybody.get("/jobs")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_haste_is_answered_with_429(settings: RunnerSettings, helpers: Any) -> None:
    slow = settings.model_copy(update={"requests_per_second": 0.01, "requests_burst": 3})
    with helpers.InThread(slow) as client:
        codes = [client.http.get("/v1/jobs").status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        refused = client.webhook("test.ping")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert client.anybody.get("/healthz").status_code == 200
        assert 'status="429"} 2.0' in client.anybody.get("/metrics").text
        client.close()


def test_the_pace_comes_back_and_its_memory_is_bounded() -> None:
    pace = Pace(2.0, 2)
    assert [pace.wait_seconds("a", 0.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert pace.wait_seconds("b", 0.0) == 0.0
    assert pace.wait_seconds("a", 0.5) == 0.0
    for i in range(MAX_CLIENTS + 10):
        pace.wait_seconds(f"10.{i}", 1.0)
    assert len(pace) == MAX_CLIENTS
    assert all(Pace(0, 1).wait_seconds("a", 0.0) == 0.0 for _ in range(5))


def test_a_body_that_drips_is_cut_off(
    runner: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.edge.limits.BODY_SECONDS", 0.2)
    address = runner.http.base_url
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        connection.sendall(b"POST /v1/webhooks HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_checkpoint_folder_has_one_spelling(runner: Any, helpers: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "mine")
    runner.submit(command=helpers.tiny_trainer(), checkpoint_dir=folder)
    for other in (f"{folder}/", f"{tmp_path}/x/../mine", f"{tmp_path}//./mine"):
        body = {"name": "two", "command": helpers.tiny_trainer(), "checkpoint_dir": other}
        assert runner.http.post("/v1/jobs", json=body).status_code == 409
