"""A supervisor of trainer workers as a process of its own, for tests and proofs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.trainer.checkpoint import read_file
from runner.trainer.manager import CheckpointManager, Committed

ROOT = Path(__file__).parents[2]
DIGITS = f"{ROOT}/examples/train_digits.py:program"
NOTHING = {"step": 0, "committed_step": None, "generation": 0, "world": 0, "state": ""}


class Run:
    """Started at once; ``kill_all`` at the end, whatever happened."""

    def __init__(self, folder: Path, program: str = DIGITS, **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.log_path = folder.with_name(folder.name + ".log")
        self.progress_path = folder.with_name(folder.name + ".progress")
        chosen = {"steps": 40, "save_interval": 10, "batch_size": 16, **settings}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "runner.trainer.supervise", program),
                    *("--checkpoint-dir", str(folder), "--settings", json.dumps(chosen)),
                ],
                env={**os.environ, "RIGCANARY_PROGRESS_FILE": str(self.progress_path)},
                stderr=log,
                start_new_session=True,
            )

    @property
    def status(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / "status.json").read_bytes())
        except FileNotFoundError:
            return NOTHING
        return value

    @property
    def losses(self) -> list[float]:
        return [json.loads(line)["loss"] for line in self.progress_path.read_text().splitlines()]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def order(self, **order: Any) -> None:
        """Leave an order; it is taken within a tick."""
        temporary = self.folder / ".order.tmp"
        temporary.write_text(json.dumps(order))
        temporary.replace(self.folder / "order.json")

    def wait_for(self, condition: Callable[[dict[str, Any]], object], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not condition(self.status):
            assert self.process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < deadline, self.log()[-3000:]
            time.sleep(0.1)

    def wait(self, code: int = 0, seconds: float = 600) -> None:
        assert self.process.wait(seconds) == code, self.log()[-3000:]

    def stop(self) -> None:
        """SIGTERM to the whole group, as the runner's guard does it."""
        os.killpg(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL of the supervisor; its workers end with it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def newest(folder: Path) -> Committed:
    found = CheckpointManager(folder).newest()
    assert found is not None
    return found


def content(folder: Path, world: int) -> dict[str, bytes]:
    """Every array of the newest checkpoint, all workers' residuals included."""
    path = newest(folder).path
    return {
        f"{name}/{key}": array.tobytes()
        for name in ["shared", *(f"worker-{rank}" for rank in range(world))]
        for key, array in read_file(path / name).arrays.items()
    }
