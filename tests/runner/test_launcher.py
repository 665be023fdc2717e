"""The local launcher and its guard: no process outlives both, none runs twice."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contract.errors import ConfigError
from runner.launchers.base import Exit, Launch
from runner.launchers.choose import make_launcher
from runner.launchers.guard import LOG_BYTES, Log
from runner.launchers.local import LocalLauncher, LocalRun, forget_old, lock_is_free
from runner.placement import Place
from runner.settings import RunnerSettings

WAITS = "import os, time; open(os.environ['READY'], 'w'); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., LocalRun]:
    def launch(code: str, generation: int = 1, grace: float = 20) -> LocalRun:
        return LocalLauncher(grace).start(
            Launch(
                job_id="job-1",
                job_dir=tmp_path,
                generation=generation,
                rank=0,
                world_size=1,
                place=Place("rig1", None),
                command=[sys.executable, "-S", "-c", code],
                checkpoint_dir=tmp_path / "checkpoints",
                progress_file=tmp_path / "progress",
                environment={"READY": str(tmp_path / "ready")},
            )
        )

    return launch


def record(folder: Path, generation: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run-0.json").read_text())
    assert found["generation"] == generation
    return found


def running(folder: Path) -> bool:
    return (folder / "run-0.json").exists() and (folder / "ready").exists()


def gone(pid: int) -> bool:
    """Dead; a zombie that its adopter has not reaped yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("code", "returncode"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_an_end_of_its_own(start: Any, helpers: Any, code: str, returncode: int) -> None:
    assert helpers.wait_for(start(code).poll) == Exit(returncode, asked=False)


def test_output_is_kept_for_the_message(start: Any, helpers: Any, tmp_path: Path) -> None:
    helpers.wait_for(start("print('one'); print('two')").poll)
    assert LocalLauncher(1).log_text(tmp_path, 0, 4) == "two\n"
    assert LocalLauncher(1).log_text(tmp_path, 1, 100) == ""


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = Log(tmp_path / "log-0")
    for _ in range(5):
        log.write(b"x" * (LOG_BYTES // 2))
    log.close()
    sizes = [p.stat().st_size for p in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= LOG_BYTES


def test_stop_asks_and_kill_does_not(start: Any, helpers: Any, tmp_path: Path) -> None:
    run = start(WAITS)
    helpers.wait_for(lambda: running(tmp_path))
    run.stop()
    assert helpers.wait_for(run.poll) == Exit(-15, asked=True)
    (tmp_path / "ready").unlink()
    run = start(STUBBORN, generation=2)
    helpers.wait_for(lambda: running(tmp_path))
    record(tmp_path, generation=2)
    run.kill()
    assert helpers.wait_for(run.poll) == Exit(-9, asked=True)


@pytest.mark.parametrize("then_kill", [False, True])
def test_what_ignores_sigterm_is_killed(
    start: Any, helpers: Any, tmp_path: Path, then_kill: bool
) -> None:
    run = start(STUBBORN, grace=20 if then_kill else 0.3)
    helpers.wait_for(lambda: running(tmp_path))
    run.stop()
    if then_kill:
        run.kill()
    assert helpers.wait_for(run.poll) == Exit(-9, asked=True)


def test_the_end_of_the_runner_is_a_stop(start: Any, helpers: Any, tmp_path: Path) -> None:
    run = start(WAITS)
    helpers.wait_for(lambda: running(tmp_path))
    found = LocalLauncher(20).recover(tmp_path, 1, 0)
    assert found.poll() is None, "it still lives"
    run._guard.stdin.close()  # all that kill -9 of the runner leaves of it
    assert helpers.wait_for(found.poll) == Exit(-15, asked=True)
    helpers.wait_for(run.poll)


def test_the_end_of_the_guard_is_the_end_of_its_process(
    start: Any, helpers: Any, tmp_path: Path
) -> None:
    run = start(STUBBORN)
    helpers.wait_for(lambda: running(tmp_path))
    there = record(tmp_path)
    os.kill(there["guard"], signal.SIGKILL)
    assert helpers.wait_for(run.poll) == Exit(None, asked=False)
    helpers.wait_for(lambda: gone(there["pid"]))


def test_descendants_go_too(start: Any, helpers: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "grandchild"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {STUBBORN!r}])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
    )
    assert helpers.wait_for(start(code).poll) == Exit(0, asked=False)
    helpers.wait_for(lambda: gone(int(pid_file.read_text())))


def test_a_second_start_waits_for_the_first(start: Any, helpers: Any, tmp_path: Path) -> None:
    first = start(WAITS)
    helpers.wait_for(lambda: running(tmp_path))
    second = start("pass", generation=2)
    assert not lock_is_free(tmp_path / "lock-0")
    record(tmp_path, generation=1)
    assert second.poll() is None
    first.stop()
    assert helpers.wait_for(second.poll) == Exit(0, asked=False)
    assert helpers.wait_for(first.poll) == Exit(-15, asked=True)
    assert record(tmp_path, generation=2)["pid"]


def test_an_order_before_the_start_means_no_start(start: Any, helpers: Any, tmp_path: Path) -> None:
    first = start(WAITS)
    helpers.wait_for(lambda: running(tmp_path))
    second = start("open('started', 'w')", generation=2)
    second.stop()
    first.stop()
    assert helpers.wait_for(second.poll) == Exit(None, asked=True)
    helpers.wait_for(first.poll)
    record(tmp_path, generation=1)


def test_old_files_are_forgotten(tmp_path: Path) -> None:
    for generation in range(1, 6):
        (tmp_path / f"exit-{generation}-0.json").touch()
        (tmp_path / f"progress-{generation}-0.jsonl").touch()
    forget_old(tmp_path, 6)
    assert sorted(p.name for p in tmp_path.glob("exit*")) == ["exit-4-0.json", "exit-5-0.json"]
    assert len(list(tmp_path.glob("progress*"))) == 2


def test_another_launcher_is_named_by_its_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(launcher: str) -> RunnerSettings:
        return RunnerSettings(state_dir=tmp_path, launcher=launcher)

    assert isinstance(make_launcher(settings("local")), LocalLauncher)
    module = ModuleType("their_launcher")
    vars(module)["make"] = lambda s: LocalLauncher(s.checkpoint_grace_seconds)
    monkeypatch.setitem(sys.modules, "their_launcher", module)
    assert not make_launcher(settings("their_launcher:make")).outlives_runner
    for wrong, message in [
        ("slurm", "is not known; write local or package.module:factory"),
        ("no.such:thing", "is it installed"),
        ("runner.launchers.local:nothing", "is it installed"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_launcher(settings(wrong))
