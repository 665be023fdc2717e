"""``python -m runner.trainer --settings JSON``: trains, reports, checkpoints, stops on SIGTERM.

It follows the trainer protocol of docs/runner.md: the checkpoint folder and the progress file
come in the environment.
"""

import argparse
import json
import logging
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

from pydantic import ValidationError

from runner.trainer.settings import TrainerSettings

log = logging.getLogger("rigcanary.trainer")
SMOOTHING: Final = 0.98
"""Of the reported loss: an exponential mean over about fifty steps."""
REPORT_SECONDS: Final = 0.2
"""A report at most this often."""


class StopRequest:
    """SIGTERM, remembered until the next step boundary; before the first step it ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self.training = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self.training:
            os._exit(0)  # nothing was learnt yet, and an import cannot be interrupted cleanly


class Reporter:
    """Appends progress lines, each in one write."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("ab", buffering=0)
        self._node = os.environ.get("RIGCANARY_NODE") or None
        self._device = os.environ.get("RIGCANARY_DEVICE") or None
        self._generation = int(os.environ.get("RIGCANARY_GENERATION", "0"))
        self._due = 0.0

    def report(self, step: int, loss: float, *, force: bool = False) -> None:
        """Say how far it is; more often than ``REPORT_SECONDS`` only when forced."""
        if self._file is None or (time.monotonic() < self._due and not force):
            return
        self._due = time.monotonic() + REPORT_SECONDS
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {
            "at": at,
            "step": step,
            "loss": round(loss, 6),
            "node": self._node,
            "device": self._device,
            "generation": self._generation,
        }
        self._file.write(json.dumps(line).encode() + b"\n")


def train(settings: TrainerSettings, folder: Path, reporter: Reporter, stop: StopRequest) -> int:
    """Run until the last step or a stop request; returns the number of steps done in all."""
    from runner.trainer.checkpoint import Checkpoint, CheckpointFolder
    from runner.trainer.device import limit_tensorflow

    limit_tensorflow()
    from runner.trainer.loop import Loop
    from runner.trainer.task import TASKS

    task = TASKS[settings.task]()
    loop = Loop(task, settings)
    checkpoints = CheckpointFolder(folder, settings.keep_last)
    step, smoothed = 0, None
    found = checkpoints.load_newest()
    if found is not None:
        loop.restore(found.arrays)
        step, smoothed = found.step, found.meta["smoothed_loss"]
        if found.meta["data_digest"] != task.data_digest:
            log.warning("the data are not those of the checkpoint; the run goes on with them")
    log.info("%s from step %d", settings.task, step)
    saved = step

    def save() -> None:
        nonlocal saved
        meta = {"smoothed_loss": smoothed, "data_digest": task.data_digest}
        checkpoints.save(Checkpoint(step, loop.state(), meta))
        saved = step

    stop.training = True
    interval = 0.0 if settings.steps_per_second is None else 1.0 / settings.steps_per_second
    due = time.monotonic()
    while step < settings.steps and not stop.asked:
        loss = loop.step(step)
        step += 1
        smoothed = loss if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
        reporter.report(step, smoothed, force=step == settings.steps)
        if step % settings.checkpoint_every == 0:
            save()
        # Late steps are not caught up with: that would burst after every pause.
        due = max(due + interval, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))
    if step > saved:
        save()
    if smoothed is not None:
        reporter.report(step, smoothed, force=True)
    log.info("checkpoint at step %d", saved)
    return step


def main(argv: list[str]) -> int:
    """The command line; exit code 0 when done or stopped on request, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m runner.trainer", description=__doc__)
    parser.add_argument("--settings", default="{}", help="TrainerSettings as JSON")
    parser.add_argument("--checkpoint-dir", type=Path, default=None)
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        settings = TrainerSettings.model_validate_json(arguments.settings)
    except ValidationError as error:
        parser.error(f"--settings: {error}")
    folder = arguments.checkpoint_dir or os.environ.get("RIGCANARY_CHECKPOINT_DIR")
    if not folder:
        parser.error("give --checkpoint-dir, or RIGCANARY_CHECKPOINT_DIR")
    stop = StopRequest()
    progress = os.environ.get("RIGCANARY_PROGRESS_FILE")
    try:
        train(settings, Path(folder), Reporter(Path(progress) if progress else None), stop)
    except ModuleNotFoundError as error:
        log.error("the built-in trainer needs %s: pip install 'rigcanary[models]'", error.name)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
