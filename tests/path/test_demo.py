"""The whole path with its real processes: the right card's job moves, exactly once.

The demo starts brokers, bridge, worker with the shipped model, runner, agents and the training
job as processes; here its worker is killed on the way.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RIGS = 4


def worker_of(demo: psutil.Process) -> psutil.Process | None:
    """The demo's worker process."""
    for child in demo.children(recursive=True):
        try:
            if "worker" in child.cmdline()[:5]:
                return child
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def test_the_failing_cards_job_moves_once_although_the_worker_is_killed(tmp_path: Path) -> None:
    report = tmp_path / "report"
    log = tmp_path / "demo.log"
    command = [
        sys.executable, "-m", "rigcanary", "demo", "--plain", "--speed", "60",
        "--rigs", str(RIGS), "--cards", "4", "--report", str(report),
    ]  # fmt: skip
    with log.open("wb") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        family = psutil.Process(demo.pid)
        deadline = time.monotonic() + 600
        while b"step" not in log.read_bytes() and time.monotonic() < deadline:
            assert demo.poll() is None, log.read_text()
            time.sleep(1)
        time.sleep(30)
        worker = worker_of(family)
        assert worker is not None, log.read_text()
        worker.send_signal(signal.SIGKILL)
        code = demo.wait(600)
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(60)
    text = log.read_text()
    # The demo says so itself when a part had to be started again, and only that may be amiss.
    assert code == 1, text
    assert "NOT AS IT SHOULD BE: worker crashed and was restarted 1 times\n" in text
    assert text.count("NOT AS IT SHOULD BE") == 1
    found = json.loads((report / "report.json").read_text())
    sick = next(f for f in found["failures"] if f["kind"] == "vrm_capacitor")
    moves = [m for m in found["migrations"] if m["device"] == sick["device"]]
    assert len(moves) == 1, text
    assert moves[0]["job"] is not None
    assert moves[0]["from"]["device"] == sick["device"] != moves[0]["to"]["device"]
    assert sick["decided_at"] < sick["failed_at"]
    assert sick["cause"] == "predicted"
    assert found["false_migrations"] == 0
    job = found["job"]
    assert job["loss_last"] < job["loss_before_move"] < job["loss_first"]
    assert (report / "report.html").stat().st_size > 10_000
