"""The supervisor with real TensorFlow workers: killed, stopped, resized, resumed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trainer_run import DIGITS, ROOT, Run, content, newest

from runner.trainer.checkpoint import read_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(name: str = "run", program: str = DIGITS, **settings: Any) -> Run:
        started.append(Run(tmp_path / name, program, **settings))
        return started[-1]

    yield start
    for run in started:
        run.kill()


def has_committed(step: int, status: dict[str, Any]) -> bool:
    return (status["committed_step"] or 0) >= step


def is_past(step: int, status: dict[str, Any]) -> bool:
    return bool(status["step"] > step)


def is_of_size(world: int, status: dict[str, Any]) -> bool:
    return bool(status["world"] == world and status["state"] == "running")


@pytest.mark.parametrize(("world", "codec"), [(1, "onebit"), (2, "onebit")])
def test_resuming_changes_no_bit_residuals_included(
    runs: Callable[..., Run], world: int, codec: str, tmp_path: Path
) -> None:
    """N steps straight = k, save, load, N − k; the cut lies behind the warm-up."""
    settings = {"workers": world, "codec": codec, "warmup_steps": 10, "step_seconds": 0.05}
    runs("straight", **settings).wait()
    halting = runs("halting", **settings)
    halting.wait_for(lambda s: s["step"] >= 17)
    halting.stop()
    halting.wait()
    cut = newest(tmp_path / "halting").step
    assert 17 <= cut < 40
    runs("halting", **settings).wait()
    one, other = (content(tmp_path / name, world) for name in ("straight", "halting"))
    assert one.keys() == other.keys()
    assert [key for key in one if one[key] != other[key]] == []
    residual = read_file(newest(tmp_path / "halting").path / "worker-0").arrays["residual"]
    assert bool(residual.any()) == (world > 1)


def test_a_killed_and_a_stopped_worker_and_the_standby_process(runs: Callable[..., Run]) -> None:
    run = runs(workers=2, codec="onebit", steps=400, step_seconds=0.02, beat_seconds=3)
    run.wait_for(partial(has_committed, 20))
    os.kill(run.status["pids"][1], signal.SIGKILL)
    run.wait_for(lambda s: s["generation"] == 2 and s["step"] >= 50)
    os.kill(run.status["pids"][0], signal.SIGSTOP)
    run.wait_for(lambda s: s["generation"] == 3 and s["step"] >= 80)
    os.kill(run.status["standby_pid"], signal.SIGKILL)
    run.wait()
    whys = [restart["why"] for restart in run.status["restarts"]]
    assert whys[0] == "rank 1 ended"
    assert whys[1] == "rank 0 not heard for 3 s"
    assert len(whys) == 3
    assert run.status["step"] == run.status["committed_step"] == 400
    assert 0 < run.status["goodput"] <= 1
    steps = [json.loads(line)["step"] for line in run.progress_path.read_text().splitlines()]
    assert steps[-1] == 400


def test_world_3_2_1_3(runs: Callable[..., Run], tmp_path: Path) -> None:
    run = runs(workers=3, codec="onebit", steps=100_000, warmup_steps=0, step_seconds=0.02)
    for world in (2, 1, 3):
        before = run.status["step"]
        run.wait_for(partial(is_past, before + 5))
        run.order(workers=world)
        run.wait_for(partial(is_of_size, world))
    before = run.status["step"]
    run.wait_for(partial(is_past, before + 5))
    run.stop()
    run.wait()
    assert run.status["restarts"] == [], "a planned change is no failure"
    assert run.losses[-1] < run.losses[0]
    assert read_file(newest(run.folder).path / "shared").meta["world"] == 3


def test_a_killed_supervisor_takes_its_workers_along_and_never_runs_twice(
    runs: Callable[..., Run],
) -> None:
    run = runs(workers=2, steps=100_000, step_seconds=0.02)
    run.wait_for(partial(has_committed, 20))
    status = run.status
    second = runs(workers=2, steps=status["step"] + 60)  # waits for the lock
    run.process.kill()
    run.process.wait()
    second.wait()
    assert not any(Path(f"/proc/{pid}").exists() for pid in status["pids"])
    starts = [int(step) for step in re.findall(r"from step (\d+)", second.log())]
    assert starts[0] == 0
    assert starts[1] >= 20
    assert second.status["step"] == status["step"] + 60


def test_threads_do_not_pile_up(runs: Callable[..., Run]) -> None:
    """A collective's time-out would park two threads each: 4 a step, thousands in a minute."""
    run = runs(workers=2, codec="onebit", steps=100_000, warmup_steps=0)

    def threads() -> int:
        text = Path(f"/proc/{run.status['pids'][0]}/status").read_text()
        return int(text.split("Threads:")[1].split()[0])

    run.wait_for(lambda s: s["step"] >= 50)
    before, step = threads(), run.status["step"]
    run.wait_for(partial(is_past, step + 300))
    assert threads() < before + 50


def test_a_worker_that_never_comes_is_given_up_at_the_deadline(
    runs: Callable[..., Run], tmp_path: Path
) -> None:
    """The others wait for it for ever; the supervisor does not, and goes on with fewer."""
    program = tmp_path / "hang.py"
    program.write_text(
        "import json, os, runpy, time\n"
        f"digits = runpy.run_path({str(ROOT / 'examples/train_digits.py')!r})['program']\n"
        "def program(seed):\n"
        "    task = json.loads(os.environ.get('TF_CONFIG', '{}')).get('task', {})\n"
        "    if task.get('index') == 1:\n"
        "        time.sleep(3600)\n"
        "    return digits(seed)\n"
    )
    run = runs(program=f"{program}:program", workers=2, start_seconds=60, steps=20)
    run.wait()
    assert "no first step within 60 s" in run.status["restarts"][0]["why"]
    assert run.status["world"] == 1


@pytest.mark.parametrize(
    ("program", "says"),
    [("nothing.py:program", "is not there"), (f"{ROOT}/examples/train_digits.py:no", "function")],
)
def test_a_program_that_cannot_be_used_is_named(
    runs: Callable[..., Run], program: str, says: str
) -> None:
    run = runs(program=program)
    run.wait(2)
    assert says in run.log()
    assert "Traceback" not in run.log()


def test_a_stop_before_the_first_step_ends_at_once(runs: Callable[..., Run]) -> None:
    run = runs(workers=2)
    run.wait_for(lambda _: "generation 1:" in run.log())
    run.stop()
    run.wait(seconds=60)
    assert "Traceback" not in run.log()


def test_the_supervisor_imports_no_tensorflow() -> None:
    code = "import sys, runner.trainer.supervise; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
