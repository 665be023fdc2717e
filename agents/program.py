"""Tools that are asked for their output, in children that are killed when they hang."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agents.source import NotHere, ReadFailed, ReadLate

REAP_SECONDS: Final = 0.5
"""How long a killed child may take to go; one inside the kernel (state D) does not go at all."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a program printed, and its exit code (negative: the signal that ended it)."""

    stdout: bytes
    stderr: bytes
    exit_code: int

    def first_line(self) -> str:
        """What it said first, for a person: up to 200 characters of its errors or its output."""
        text = (self.stderr or self.stdout).decode(errors="replace").strip()
        return text.splitlines()[0][:200] if text else "nothing"


class Program:
    """One tool, run once a call, with its children, and killed at the deadline with them.

    A child that cannot be killed is left behind, one at most: until it is gone, every call is
    late at once. ``killed`` counts the children that were killed.
    """

    def __init__(self, command: Sequence[str], deadline_seconds: float) -> None:
        self._command = list(command)
        self._deadline = deadline_seconds
        self._left_behind: subprocess.Popen[bytes] | None = None
        self._left_at = 0.0
        self.killed = 0

    def run(self) -> Output:
        """Run it to its end.

        Raises:
            NotHere: there is no such program.
            ReadLate: it did not end in time.
            ReadFailed: it could not be started.
        """
        name = self._command[0]
        if self._left_behind is not None:
            if self._left_behind.poll() is None:
                since = time.monotonic() - self._left_at
                raise ReadLate(f"{name} hangs in the kernel since {since:.0f} s, unkillable")
            self._left_behind = None
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise NotHere(f"the program {name} is not installed") from error
        except OSError as error:
            raise ReadFailed(f"{name} cannot be started: {error.strerror}") from error
        try:
            stdout, stderr = child.communicate(timeout=self._deadline)
        except subprocess.TimeoutExpired:
            self._kill(child)
            raise ReadLate(f"{name} did not end within {self._deadline:g} s") from None
        return Output(stdout, stderr, child.returncode)

    def _kill(self, child: "subprocess.Popen[bytes]") -> None:
        self.killed += 1
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.killpg(child.pid, signal.SIGKILL)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._left_behind, self._left_at = child, time.monotonic()
