"""Stands between the runner and one job process, so that the process never outlives both.

Run as a script (``python -I -S guard.py RUN_DIR GENERATION RANK GRACE_SECONDS -- COMMAND…``),
standard library only, so that it starts at once. It

- holds a lock on ``RUN_DIR/lock-RANK`` and lets its child inherit it: as long as anything of
  an earlier start lives, no later one begins;
- reads orders from standard input: ``stop`` (SIGTERM to the child's process group, SIGKILL
  when the grace is over), ``kill`` (SIGKILL). The end of the input, which is what a dead
  runner leaves behind, however it died, counts as ``stop``;
- copies the child's output into ``log-RANK`` and keeps it bounded;
- writes how it ended to ``exit-GENERATION-RANK.json``, for a runner that comes later.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

LOG_BYTES = 4 * 1024 * 1024
"""Size at which the log is set aside (as ``log-RANK.1``) and begun anew."""
LOCK_WAIT_SECONDS = 15.0
"""How long a start waits for what is left of the one before it."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_TICKS_FIELD = 19
"""Index of ``starttime`` after the command name in /proc/PID/stat (proc(5): field 22)."""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its pid, its identity."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[START_TICKS_FIELD])
    except (OSError, ValueError, IndexError):
        return None


def write_atomically(path: Path, value: dict[str, object]) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def kill_group(pgid: int, number: int) -> None:
    """Signal a process group; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


class Log:
    """An append-only file that is set aside when it grows too long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > LOG_BYTES:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
        with contextlib.suppress(OSError):  # a full disk must not stop the job
            self._file.write(data)

    def close(self) -> None:
        self._file.close()


def take_lock(path: Path) -> int | None:
    """The lock's descriptor, or None when somebody keeps it for too long or the runner is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Guard:
    """The loop around one child."""

    def __init__(
        self, child: "subprocess.Popen[bytes]", output: int, grace_seconds: float, log: Log
    ) -> None:
        self._child = child
        self._output = output
        self._grace_seconds = grace_seconds
        self._log = log
        self._kill_at: float | None = None
        self.asked = False

    def run(self) -> int:
        """Wait for the child's end; returns its exit status (negative: a signal)."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_write)
        output = self._output
        os.set_blocking(output, False)
        selector = selectors.DefaultSelector()
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while self._child.poll() is None:
            wait = None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0)
            for key, _ in selector.select(wait):
                if key.fd == 0:
                    orders = os.read(0, 4096)
                    if not orders:
                        selector.unregister(0)
                    self._obey(orders)
                elif key.fd == output:
                    if self._copy(output) == 0:
                        selector.unregister(output)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                kill_group(self._child.pid, signal.SIGKILL)
                self._kill_at = time.monotonic() + 1.0
        kill_group(self._child.pid, signal.SIGKILL)  # what it may have left behind
        while self._copy(output) > 0:
            pass
        return self._child.returncode

    def _obey(self, orders: bytes) -> None:
        if b"kill" in orders:
            self.asked = True
            self._kill_at = time.monotonic()
        elif not orders or b"stop" in orders:
            self._stop()

    def _stop(self) -> None:
        if not self.asked:
            self.asked = True
            self._kill_at = time.monotonic() + self._grace_seconds
            kill_group(self._child.pid, signal.SIGTERM)

    def _copy(self, descriptor: int) -> int:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return -1
        self._log.write(data)
        return len(data)


def main(arguments: list[str]) -> int:
    """Run one command under guard; the exit file says how it went."""
    run_dir, generation, rank, grace = Path(arguments[0]), *arguments[1:4]
    command = arguments[arguments.index("--") + 1 :]
    exit_file = run_dir / f"exit-{generation}-{rank}.json"
    lock = take_lock(run_dir / f"lock-{rank}")
    if lock is None:
        error = "a process of an earlier start of this job still runs and holds its lock"
        write_atomically(exit_file, {"returncode": None, "asked": False, "error": error})
        return 1
    ready = selectors.DefaultSelector()
    ready.register(0, selectors.EVENT_READ)
    if ready.select(0):
        # An order, or the runner's end, came before the start: then there is none.
        write_atomically(exit_file, {"returncode": None, "asked": True, "error": None})
        return 0
    parent = os.getpid()
    log = Log(run_dir / f"log-{rank}")
    output, child_output = os.pipe2(os.O_CLOEXEC)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=child_output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
            preexec_fn=lambda: _die_with_parent(parent),  # noqa: PLW1509  one thread only
        )
    except (OSError, subprocess.SubprocessError) as failure:
        error = f"cannot start {command[0]!r}: {failure}"
        write_atomically(exit_file, {"returncode": None, "asked": False, "error": error})
        return 1
    os.close(child_output)
    write_atomically(
        run_dir / f"run-{rank}.json",
        {
            "generation": int(generation),
            "guard": parent,
            "guard_ticks": start_ticks(parent),
            "pid": child.pid,
            "ticks": start_ticks(child.pid),
        },
    )
    guard = Guard(child, output, float(grace), log)
    returncode = guard.run()
    write_atomically(exit_file, {"returncode": returncode, "asked": guard.asked, "error": None})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
