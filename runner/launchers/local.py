"""The ``local`` launcher: a job's processes are children on this machine.

The node's and card's name reach the process as ``RIGCANARY_NODE`` and ``RIGCANARY_DEVICE``.
Each process stands under a :mod:`runner.launchers.guard` and in a process group of its own.
When the runner ends, in whatever way, the guards ask their processes for a checkpoint and
end them; the next runner waits until they are gone and starts the jobs again from there.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from runner.launchers.base import Exit, Launch
from runner.launchers.guard import kill_group, start_ticks

GUARD: Final = Path(__file__).with_name("guard.py")
STUCK_SECONDS: Final = 5.0
"""How long past its grace a guard may take before it is killed with its child."""
MAX_KILLS: Final = 3
"""Attempts to end what does not end, STUCK_SECONDS apart, before it is given up."""
PRIVATE_PREFIX: Final = "RIGCANARY_RUNNER_"
"""The runner's own settings, secrets among them, which are no business of a job."""


class LocalLauncher:
    """Starts processes on this machine. ``grace_seconds``: from SIGTERM to SIGKILL."""

    outlives_runner = False

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds

    def start(self, launch: Launch) -> "LocalRun":
        """Start one process under its guard.

        Raises:
            OSError: when no process can be made.
        """
        launch.job_dir.mkdir(parents=True, exist_ok=True)
        launch.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        forget_old(launch.job_dir, launch.generation)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(PRIVATE_PREFIX)}
        environment["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
        )
        environment |= launch.environment
        arguments = [
            sys.executable,
            "-I",
            "-S",
            str(GUARD),
            str(launch.job_dir),
            str(launch.generation),
            str(launch.rank),
            str(self._grace_seconds),
            "--",
            *launch.command,
        ]
        guard = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        return LocalRun(launch.job_dir, launch.generation, launch.rank, self._grace_seconds, guard)

    def recover(self, job_dir: Path, generation: int, rank: int) -> "LocalRun":
        """What an earlier runner may have started: its guard is already stopping it."""
        return LocalRun(job_dir, generation, rank, self._grace_seconds, None)

    def log_text(self, job_dir: Path, rank: int, limit_bytes: int) -> str:
        """The end of the rank's log; empty where it has none."""
        try:
            with (job_dir / f"log-{rank}").open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - limit_bytes, 0))
                return file.read(limit_bytes).decode("utf-8", "replace")
        except OSError:
            return ""


class LocalRun:
    """One guarded process; without a guard of our own it is one from before our life."""

    def __init__(
        self,
        job_dir: Path,
        generation: int,
        rank: int,
        grace_seconds: float,
        guard: "subprocess.Popen[bytes] | None",
    ) -> None:
        self._job_dir = job_dir
        self._generation = generation
        self._rank = rank
        self._grace_seconds = grace_seconds
        self._guard = guard
        self._asked_at = time.monotonic() if guard is None else None
        self._kills = 0
        self._exit: Exit | None = None

    def poll(self) -> Exit | None:
        """How it ended; None while the process, its guard or a descendant of it lives."""
        if self._exit is None:
            self._end_stuck()
            gone = (
                self._guard.poll() is not None
                if self._guard is not None
                else lock_is_free(self._job_dir / f"lock-{self._rank}")
            )
            if gone:
                self._close_input()
                self._clean_up_after_guard()
                self._exit = self._read_exit()
            elif self._kills > MAX_KILLS:
                self._exit = Exit(
                    None,
                    asked=True,
                    error=(
                        f"something that rank {self._rank} started does not end; see who holds "
                        f"{self._job_dir / f'lock-{self._rank}'}"
                    ),
                )
        return self._exit

    def stop(self) -> None:
        """Ask for a checkpoint and a clean end, by closing the guard's input."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self._close_input()

    def kill(self) -> None:
        """End the process now."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        if self._guard is None or self._guard.stdin is None or self._guard.stdin.closed:
            self._signal_child(signal.SIGKILL)
            return
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(b"kill\n")
            self._guard.stdin.flush()
        self._close_input()

    def _close_input(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()

    def _end_stuck(self) -> None:
        if self._asked_at is None:
            return
        if time.monotonic() < self._asked_at + self._grace_seconds + STUCK_SECONDS:
            return
        self._asked_at = time.monotonic() - self._grace_seconds
        self._kills += 1
        self._signal_child(signal.SIGKILL)
        record = self._record()
        if record is not None and start_ticks(record["guard"]) == record["guard_ticks"]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(record["guard"], signal.SIGKILL)

    def _signal_child(self, number: int) -> None:
        record = self._record()
        if record is None:
            return
        # The group may outlive its leader, whose pid is not given away before the group ends.
        leader = start_ticks(record["pid"])
        if leader is None or leader == record["ticks"]:
            kill_group(record["pid"], number)

    def _clean_up_after_guard(self) -> None:
        if self._guard is not None and not self._exit_file().exists():
            self._signal_child(signal.SIGKILL)  # the guard itself was killed

    def _record(self) -> dict[str, Any] | None:
        record = _read_json(self._job_dir / f"run-{self._rank}.json")
        if record is None or record.get("generation") != self._generation:
            return None
        return record

    def _exit_file(self) -> Path:
        return self._job_dir / f"exit-{self._generation}-{self._rank}.json"

    def _read_exit(self) -> Exit:
        value = _read_json(self._exit_file())
        if value is None:
            return Exit(returncode=None, asked=self._asked_at is not None)
        return Exit(value["returncode"], value["asked"], value["error"])


def lock_is_free(path: Path) -> bool:
    """Whether nobody holds the lock (nothing of an earlier start lives)."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def forget_old(job_dir: Path, generation: int, keep: int = 2) -> None:
    """Remove exit and progress files of starts more than ``keep`` before this one."""
    for path in [*job_dir.glob("exit-*-*.json"), *job_dir.glob("progress-*-*.jsonl")]:
        number = path.name.split("-")[1]
        if number.isdigit() and int(number) < generation - keep:
            path.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
