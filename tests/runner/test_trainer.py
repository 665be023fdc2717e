"""Checkpoints, and the TensorFlow trainer: the same numbers, stopped and resumed or not."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.trainer.checkpoint import Checkpoint, CheckpointFolder
from runner.trainer.settings import TrainerSettings

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "weight/a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.1], np.float64),
}


def checkpoint(step: int) -> Checkpoint:
    arrays = {**ARRAYS, "c": np.array([step], np.int64)}
    return Checkpoint(step, arrays, {"smoothed_loss": step / 3})


class TestCheckpoints:
    def test_the_newest_comes_back_bit_for_bit(self, tmp_path: Path) -> None:
        folder = CheckpointFolder(tmp_path)
        for step in (1, 2):
            folder.save(checkpoint(step))
        found = CheckpointFolder(tmp_path).load_newest()
        assert found is not None
        assert (found.step, found.meta) == (2, {"smoothed_loss": 2 / 3})
        for name, array in ARRAYS.items():
            assert found.arrays[name].dtype == array.dtype
            assert found.arrays[name].tobytes() == array.tobytes()

    def test_keeps_the_last(self, tmp_path: Path) -> None:
        folder = CheckpointFolder(tmp_path, keep_last=3)
        for step in range(1, 7):
            folder.save(checkpoint(step))
        assert folder.steps() == [4, 5, 6]

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert CheckpointFolder(tmp_path / "new").load_newest() is None

    @given(data=st.data())
    def test_any_damage_falls_back(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder = CheckpointFolder(tmp_path_factory.mktemp("c"))
        folder.save(checkpoint(1))
        path = folder.save(checkpoint(2))
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans(), "cut short"):
            content = content[: data.draw(st.integers(0, len(content) - 1))]
        else:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        found = folder.load_newest()
        assert found is not None
        assert found.step == 1
        assert folder.steps() == [1]

    def test_a_leaked_write_is_removed_and_never_read(self, tmp_path: Path) -> None:
        CheckpointFolder(tmp_path).save(checkpoint(1))
        (tmp_path / ".ckpt-000000000009.77.tmp").write_bytes(b"half a checkpoint")
        (tmp_path / "notes").write_text("not ours")
        found = CheckpointFolder(tmp_path).load_newest()
        assert found is not None
        assert found.step == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-000000000001", "notes"]

    def test_a_write_that_fails_leaves_the_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = CheckpointFolder(tmp_path)
        folder.save(checkpoint(1))

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            folder.save(checkpoint(2))
        assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000000001"]


class Recorder:
    """Takes the place of the progress file; asks for a stop after a step."""

    def __init__(self, stop: "Stop", stop_after: int | None) -> None:
        self.points: list[tuple[int, float]] = []
        self._stop = stop
        self._stop_after = stop_after

    def report(self, step: int, loss: float, *, force: bool = False) -> None:
        if not self.points or self.points[-1][0] != step:
            self.points.append((step, loss))
        self._stop.asked = step == self._stop_after


class Stop:
    asked = False
    training = False


def run(folder: Path, stop_after: int | None = None, **settings: Any) -> list[tuple[int, float]]:
    """Train in this process; every reported (step, smoothed loss)."""
    from runner.trainer.__main__ import train

    stop = Stop()
    recorder = Recorder(stop, stop_after)
    chosen = TrainerSettings(**{"steps": 40, "steps_per_second": None, **settings})
    train(chosen, folder, recorder, stop)  # type: ignore[arg-type]  # fakes of both
    return recorder.points


def test_resuming_changes_no_bit(tmp_path: Path) -> None:
    """N steps straight = k, save, load, N − k; for two cuts, one of them off the cadence."""
    straight = run(tmp_path / "straight", checkpoint_every=10)
    halting = [
        *run(tmp_path / "halting", stop_after=13, checkpoint_every=10),
        *run(tmp_path / "halting", stop_after=30, checkpoint_every=10),
        *run(tmp_path / "halting", checkpoint_every=10),
    ]
    assert [step for step, _ in straight] == list(range(1, 41))
    assert halting == straight
    ends = [CheckpointFolder(tmp_path / name).load_newest() for name in ("straight", "halting")]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].step == ends[1].step == 40
    assert ends[0].meta == ends[1].meta
    for name, array in ends[0].arrays.items():
        assert array.tobytes() == ends[1].arrays[name].tobytes(), name
    assert straight[-1][1] < straight[0][1] - 0.1, "and it learns"


@pytest.mark.slow
def test_digits_learn_too(tmp_path: Path) -> None:
    points = run(tmp_path, task="digits", steps=150, learning_rate=0.05)
    assert points[-1][1] < points[0][1] / 2


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(1))
    with pytest.raises(ValueError, match="another model"):
        run(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)  # TensorFlow is imported twice
def test_the_command_stops_on_sigterm_with_a_checkpoint(tmp_path: Path) -> None:
    """The whole program: it starts, reports, is asked to end, and goes on at the next start."""
    progress = tmp_path / "progress"
    environment = {
        **os.environ,
        "RIGCANARY_CHECKPOINT_DIR": str(tmp_path / "c"),
        "RIGCANARY_PROGRESS_FILE": str(progress),
        "RIGCANARY_NODE": "rig1",
        "RIGCANARY_GENERATION": "4",
    }
    settings = json.dumps({"steps_per_second": 50, "checkpoint_every": 1000})
    command = [sys.executable, "-m", "runner.trainer", "--settings", settings]
    steps: list[int] = []
    for _ in range(2):
        seen = len(steps)
        with subprocess.Popen(command, env=environment) as process:
            while len(steps) < seen + 3:
                assert process.poll() is None
                time.sleep(0.2)
                lines = progress.read_text().splitlines() if progress.exists() else []
                steps = [json.loads(line)["step"] for line in lines]
            process.terminate()
            assert process.wait(60) == 0
        steps = [json.loads(line)["step"] for line in progress.read_text().splitlines()]
        assert CheckpointFolder(tmp_path / "c").steps()[-1] == steps[-1]
    assert steps == sorted(steps)
    last = json.loads(progress.read_text().splitlines()[-1])
    assert (last["node"], last["device"], last["generation"]) == ("rig1", None, 4)


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    from runner.trainer.__main__ import main

    for arguments in (
        ["--settings", '{"steps": 0}', "--checkpoint-dir", str(tmp_path)],
        ["--settings", "{}"],
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
