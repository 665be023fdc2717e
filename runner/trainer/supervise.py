"""``python -m runner.trainer.supervise PROGRAM …``: a run of several workers that shrugs off loss.

It imports no TensorFlow. It keeps the workers of one generation, commits what they save, and
on any failure ends them all and begins a new generation from the last committed checkpoint. It
follows the trainer protocol of docs/runner.md; docs/trainer.md describes it.
"""

import argparse
import contextlib
import fcntl
import json
import logging
import os
import random
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pydantic import ValidationError

from runner.trainer.account import Account
from runner.trainer.crew import Standby, StandbyFailed, Worker, free_addresses
from runner.trainer.generation import Ended, Generation
from runner.trainer.manager import CheckpointManager, Committed
from runner.trainer.plan import Assignment, RunSettings
from runner.trainer.program import ProgramError, check_name
from runner.trainer.rules import batch_sizes

log = logging.getLogger("rigcanary.trainer")
ORDER_FILE: Final = "order.json"
STATUS_FILE: Final = "status.json"
LOCK_FILE: Final = ".lock"
LOCK_SECONDS: Final = 20.0
"""How long to wait for what an earlier supervisor has left running."""
REPORT_SECONDS: Final = 0.2
STATUS_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 10.0
MAX_WORKERS: Final = 64


class Supervisor:
    """The run in ``folder``; ``progress`` gets a line a step, a few a second at most."""

    def __init__(
        self, program: str, settings: RunSettings, folder: Path, progress: Path | None = None
    ) -> None:
        self._program = program
        self._settings = settings
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(folder / LOCK_FILE)
        self._manager = CheckpointManager(
            folder, settings.save_interval, settings.keep_last, settings.failure_threshold
        )
        self._progress = None if progress is None else progress.open("ab", buffering=0)
        self._account = Account()
        self._standby: Standby | None = None
        self._number = self._manager.next_generation()
        self._wanted = self._world = settings.workers
        self._failures = [0] * MAX_WORKERS
        self._begun = time.monotonic()
        self._step = 0
        self._loss: float | None = None
        self._reported_at = self._status_at = 0.0
        self._restarts: list[dict[str, Any]] = []
        self._failed_at: float | None = None
        self._workers: list[Worker] = []
        self._renew_asked = self._leave_told = False
        self.stop_asked = self.checkpoint_asked = False

    def run(self) -> int:
        """Until the last step, a request to stop, or the end of its patience; the exit code."""
        in_a_row = 0
        try:
            while not self.stop_asked:
                start = self._manager.newest()
                try:
                    ended, committed = self._generation(start)
                except StandbyFailed as error:
                    if error.final:
                        log.error("%s", error)
                        return 2
                    ended, committed = Ended("failed", str(error)), None
                    self._drop_standby()
                if ended.kind == "done":
                    self._tell(self._settings.steps, self._loss, force=True)
                    log.info("done: %d steps, goodput %.3f", self._settings.steps, self.goodput())
                    return 0
                if ended.kind == "refused":
                    log.error("%s", ended.why)
                    return 2
                if ended.kind == "left":
                    continue
                in_a_row = 1 if committed else in_a_row + 1
                if committed is None:
                    self._manager.generation_failed(start)
                if not self._recover(ended, in_a_row):
                    return 1
            log.info("stopped at step %d", self._step)
            return 0
        finally:
            self._drop_standby()
            self._write_status("ended")

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """SIGUSR1 asks for a checkpoint, any other for a checkpoint and the end."""
        if number == signal.SIGUSR1:
            self.checkpoint_asked = True
        else:
            self.stop_asked = True

    def goodput(self) -> float:
        """Share of the time since the start that went into steps that were kept."""
        return self._account.goodput(time.monotonic() - self._begun)

    def _recover(self, ended: Ended, in_a_row: int) -> bool:
        """Prepare for another generation; False when there have been too many failures."""
        log.warning("generation %d failed: %s", self._number - 1, ended.why)
        self._account.rolled_back()
        self._restarts.append({"generation": self._number - 1, "why": ended.why[:300]})
        del self._restarts[:-100]
        for rank in ended.ranks:
            self._failures[rank] += 1
        if in_a_row >= self._settings.max_failures:
            log.error("%d failures without a new checkpoint; the last: %s", in_a_row, ended.why)
            return False
        if in_a_row > 1 or ended.defect:
            pause = min(0.5 * 2**in_a_row, MAX_BACKOFF_SECONDS)
            self._sleep(pause * random.uniform(0.5, 1.0))
        return True

    def _generation(self, start: Committed | None) -> tuple[Ended, Committed | None]:
        if self._standby is not None and not self._standby.alive():
            self._drop_standby()
        if self._standby is None:
            self._standby = Standby(self._program, self._lock, self._settings.start_seconds)
        number, self._number = self._number, self._number + 1
        self._manager.remove_leaked()
        addresses = free_addresses(self._world)
        rates = [float(n) for n in self._failures[: self._world]]
        sizes = batch_sizes(
            self._settings.batch_size, rates if self._settings.elastic_batch else [0.0] * len(rates)
        )
        workers: list[Worker] = []
        self._workers = workers
        try:
            self._standby.wait_ready(lambda: self.stop_asked)
            if self.stop_asked:
                return Ended("left"), None
            for rank in range(self._world):
                assignment = Assignment(
                    settings=self._settings,
                    rank=rank,
                    generation=number,
                    addresses=addresses,
                    sizes=sizes,
                    folder=str(self._folder.resolve()),
                    checkpoint=None if start is None else str(start.path.resolve()),
                )
                workers.append(self._standby.fork(assignment))
        except StandbyFailed:
            for worker in workers:
                worker.kill()
                worker.close()
            raise
        log.info(
            "generation %d: %d workers from step %d",
            number,
            self._world,
            start.step if start else 0,
        )
        generation = Generation(
            number, workers, self._settings, self._manager, self._account, self._tell
        )
        failed_at, self._failed_at = self._failed_at, None
        self._renew_asked = self._leave_told = False
        ended = generation.run(self._tick)
        if failed_at is not None and generation.first_commit_at is not None and self._restarts:
            first_step = generation.first_step_at or generation.first_commit_at
            self._restarts[-1] |= {
                "seconds_to_step": round(first_step - failed_at, 3),
                "seconds_to_commit": round(generation.first_commit_at - failed_at, 3),
            }
        self._after(ended, generation)
        return ended, generation.committed

    def _after(self, ended: Ended, generation: Generation) -> None:
        self._world = self._wanted
        if ended.kind == "failed":
            self._failed_at = time.monotonic()
            if generation.first_step_at is None and ended.ranks and not ended.defect:
                # Who does not even start is done without, until the generation after the next.
                fewer = len(self._workers) - len(ended.ranks)
                self._world = max(fewer, self._settings.min_workers)
        if not self._settings.standby:
            self._drop_standby()

    def _tick(self, generation: Generation) -> None:
        self._take_order()
        if self.stop_asked and generation.first_step_at is None:
            generation.abandon()  # nothing was learnt yet: nothing to save, nobody to wait for
        elif self.stop_asked or self._renew_asked:
            if not self._leave_told:
                generation.ask("leave")
                self._leave_told = True
        elif self.checkpoint_asked:
            generation.ask("checkpoint")
        self.checkpoint_asked = False
        if time.monotonic() - self._status_at > STATUS_SECONDS:
            self._write_status("running")

    def _take_order(self) -> None:
        path = self._folder / ORDER_FILE
        try:
            order = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used: %s", path, error)
            path.unlink(missing_ok=True)
            return
        path.unlink(missing_ok=True)
        workers = order.get("workers") if isinstance(order, dict) else None
        if isinstance(workers, int) and 1 <= workers <= MAX_WORKERS:
            self._renew_asked = self._renew_asked or workers != len(self._workers)
            self._wanted = workers
        elif isinstance(order, dict) and order.get("renew") is True:
            self._renew_asked = True
        elif isinstance(order, dict) and order.get("checkpoint") is True:
            self.checkpoint_asked = True
        else:
            log.warning('%s: known are {"workers": N}, {"renew": true}, {"checkpoint": true}', path)

    def _tell(self, step: int, loss: float | None, *, force: bool = False) -> None:
        self._step, self._loss = step, loss
        now = time.monotonic()
        if self._progress is None or (now - self._reported_at < REPORT_SECONDS and not force):
            return
        self._reported_at = now
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"at": at, "step": step, "loss": loss, "goodput": round(self.goodput(), 4)}
        self._progress.write(json.dumps(line).encode() + b"\n")

    def _write_status(self, state: str) -> None:
        self._status_at = time.monotonic()
        committed = self._manager.all()
        status = {
            "state": state,
            "step": self._step,
            "loss": self._loss,
            "committed_step": committed[-1].step if committed else None,
            "generation": self._number - 1,
            "world": len(self._workers),
            "pids": [w.pid for w in self._workers],
            "standby_pid": self._standby.pid if self._standby else None,
            "goodput": round(self.goodput(), 4),
            "kept_seconds": round(self._account.kept_seconds, 3),
            "lost_seconds": round(self._account.lost_seconds, 3),
            "wall_seconds": round(time.monotonic() - self._begun, 3),
            "restarts": self._restarts,
        }
        temporary = self._folder / f".{STATUS_FILE}.tmp"
        with contextlib.suppress(OSError):  # a full disk must not stop the run
            temporary.write_text(json.dumps(status))
            temporary.replace(self._folder / STATUS_FILE)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop_asked:
            time.sleep(0.05)

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None


def _take_lock(path: Path) -> int:
    """One run at a time in a folder; workers of a supervisor that died hold it to their end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise BlockingIOError(f"another run uses {path.parent}") from None
            time.sleep(0.1)
        else:
            return descriptor


def main(argv: list[str]) -> int:
    """The command line: 0 done or stopped, 1 given up, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m runner.trainer.supervise")
    parser.add_argument("program", help="FILE.py:FUNCTION or MODULE:FUNCTION")
    parser.add_argument("--settings", default="{}", help="RunSettings as JSON")
    for option in ("--workers", "--steps", "--codec", "--batch-size", "--save-interval"):
        parser.add_argument(option)
    parser.add_argument("--checkpoint-dir", type=Path, default=None)
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    given = vars(arguments)
    names = ("workers", "steps", "codec", "batch_size", "save_interval")
    try:
        values = json.loads(arguments.settings)
        values |= {name: given[name] for name in names if given[name] is not None}
        settings = RunSettings.model_validate(values)
    except (ValidationError, ValueError, TypeError) as error:
        parser.error(f"--settings: {error}")
    try:
        check_name(arguments.program)
    except ProgramError as error:
        parser.error(str(error))
    folder = arguments.checkpoint_dir or os.environ.get("RIGCANARY_CHECKPOINT_DIR")
    if not folder:
        parser.error("give --checkpoint-dir, or RIGCANARY_CHECKPOINT_DIR")
    progress = os.environ.get("RIGCANARY_PROGRESS_FILE")
    try:
        supervisor = Supervisor(
            arguments.program, settings, Path(folder), Path(progress) if progress else None
        )
    except BlockingIOError as error:
        log.error("%s; wait for its end, or give another folder", error)
        return 1

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, supervisor.on_signal)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
