"""Ends the processes of one run when the supervisor is gone, however it went.

Run by path as its own process, standard library only. It holds the read end of a pipe from
the supervisor; when that closes (end, crash, kill -9), it ends every process whose
environment carries the run's marker: children, and what they started in turn.
"""

import os
import signal
import sys
import time
from pathlib import Path

MARKER = "ONEBOX_RUN"
"""Environment variable that every process of a run inherits; its value is unique to the run."""

TERM_SECONDS = 8.0


def marked(run_id: str) -> list[int]:
    """Process ids that carry the marker of ``run_id``, the caller's own left out."""
    wanted = f"{MARKER}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send ``number`` to each of ``pids`` that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def sweep(run_id: str, term_seconds: float = TERM_SECONDS) -> int:
    """End what is left of a run: TERM, a bounded wait, KILL. Returns how many were found."""
    found = marked(run_id)
    signal_all(found, signal.SIGTERM)
    deadline = time.monotonic() + term_seconds
    while (left := marked(run_id)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(20):
        if not left:
            break
        signal_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = marked(run_id)
    return len(found)


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    sweep(sys.argv[1])


if __name__ == "__main__":
    _main()
