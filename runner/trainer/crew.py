"""The processes of one run: the standby process, and workers forked from it."""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from runner.trainer.plan import Assignment
from runner.trainer.standby import die_with_parent

log = logging.getLogger("rigcanary.trainer")
MAX_MESSAGE_BYTES: Final = 1 << 16
FORK_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.2


class StandbyFailed(RuntimeError):
    """No worker can be made: the standby process ended or refused; ``final`` asks for no retry."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass
class Worker:
    """A process of one generation, seen from the supervisor. Times are monotonic seconds."""

    rank: int
    connection: socket.socket
    pidfd: int
    pid: int
    heard_at: float
    started: bool = False
    """It has reported a step."""
    gone: bool = False
    pending: bytes = b""
    weights: str | None = None
    """Digest at its start."""
    trouble: str | None = field(default=None)
    saved: dict[int, dict[str, Any]] = field(default_factory=dict)
    agreed: set[int] = field(default_factory=set)

    def order(self, order: str) -> None:
        """Send an order; one that is gone will be noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps({"order": order}).encode() + b"\n")

    def kill(self) -> None:
        """SIGKILL, by a handle that never means another process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Forget it."""
        self.connection.close()
        os.close(self.pidfd)

    def read(self) -> list[dict[str, Any]]:
        """What it said; marks it gone at the end of its socket."""
        try:
            data = self.connection.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.gone = True
            return []
        self.heard_at = time.monotonic()
        *lines, self.pending = (self.pending + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Standby:
    """The process that has imported everything, and forks workers."""

    def __init__(self, program: str, lock: int, seconds: float) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.getpid()
        # Both inherit the folder's lock: none begins anew before the last of us is gone.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runner.trainer.standby", str(theirs.fileno()), program],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), lock),
            preexec_fn=lambda: _prepare(own),  # noqa: PLW1509  one thread only
        )
        theirs.close()
        self._seconds = seconds
        self._ready = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def wait_ready(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Wait for the end of its imports; returns early once ``cancelled`` says so.

        Raises:
            StandbyFailed: when it ended, refused, or took too long.
        """
        deadline = time.monotonic() + self._seconds
        while not self._ready and time.monotonic() < deadline:
            if cancelled():
                return
            if select.select([self._control], [], [], POLL_SECONDS)[0]:
                break
        if self._ready:
            return
        answer = self._receive(POLL_SECONDS)
        if answer["kind"] == "refused":
            raise StandbyFailed(answer["error"], final=True)
        self._ready = True

    def fork(self, assignment: Assignment) -> Worker:
        """A worker with this assignment.

        Raises:
            StandbyFailed: when there is none.
        """
        self.wait_ready()
        ours, theirs = socket.socketpair()
        try:
            order = assignment.model_dump_json().encode()
            socket.send_fds(self._control, [order], [theirs.fileno()])
            pid = int(self._receive(FORK_SECONDS)["pid"])
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            ours.close()
            raise StandbyFailed(f"no worker could be made: {error}") from error
        except StandbyFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return Worker(assignment.rank, ours, pidfd, pid, time.monotonic())

    def close(self) -> None:
        """End it; its workers end with it."""
        self._process.kill()
        self._process.wait()
        self._control.close()

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except TimeoutError:
            raise StandbyFailed("the standby process did not answer in time") from None
        except OSError as error:
            raise StandbyFailed(f"the standby process is gone: {error}") from error
        if not data:
            code = self._process.wait()
            raise StandbyFailed(f"the standby process ended with code {code}; its output says why")
        message: dict[str, Any] = json.loads(data)
        return message


def _prepare(parent: int) -> None:
    die_with_parent(parent)
    # A stop is sent to the whole group; the supervisor alone decides, and needs its workers for it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """``host:port`` of ports that are free now. All are held until all are found."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind((host, 0))
        return [f"{host}:{s.getsockname()[1]}" for s in sockets]
    finally:
        for s in sockets:
            s.close()
