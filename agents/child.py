"""A slow tool beside the samples: started now and then, read when it is done, killed when late."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO, TypeVar

from agents.source import NotHere, ReadFailed

T = TypeVar("T")

MAX_OUTPUT_BYTES = 8 * 2**20
_GIVE_UP_SECONDS = 1.0


class SlowTool:
    """Runs ``command`` every ``every_seconds`` and never waits for it.

    Monitoring tools of boards take seconds, and hang when a board does. The child has a process
    group of its own, which is killed ``deadline_seconds`` after its start. One that cannot be
    killed (it waits in the kernel) is left behind and keeps its place: no second one is started.
    """

    def __init__(
        self, command: tuple[str, ...], every_seconds: float, deadline_seconds: float
    ) -> None:
        self._command = command
        self._every = every_seconds
        self._deadline = deadline_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._started = float("-inf")
        self._killed = False
        self._answered = False
        self._trouble: str | None = None

    @property
    def pending(self) -> bool:
        """Whether it was started and has never answered yet."""
        return self._child is not None and not self._answered

    def read(self, monotonic: float, parse: Callable[[bytes], T]) -> T | None:
        """What ``parse`` makes of what the tool printed, once per run; None without anything new.

        Raises:
            NotHere: the program is not installed.
            ReadFailed: it ended with an error and printed nothing, was killed, or ``parse``
                refused it; raised again until it gives a better answer.
        """
        try:
            printed = self._poll(monotonic)
            found = None if printed is None else parse(printed)
        except ReadFailed as error:
            self._trouble = str(error)
            raise
        if printed is not None:
            self._trouble = None
        elif self._trouble is not None:
            # It runs again, which is no better answer yet.
            raise ReadFailed(self._trouble)
        return found

    def _poll(self, monotonic: float) -> bytes | None:
        if self._child is None:
            if monotonic - self._started >= self._every:
                self._start(monotonic)
            return None
        if self._child.poll() is None:
            if monotonic - self._started >= self._deadline:
                self._kill()
            if self._killed:
                self._answered = True
                raise ReadFailed(
                    f"{self._command[0]} did not answer within {self._deadline:g} s and was killed"
                )
            return None
        return self._finish()

    def close(self) -> None:
        """Kill what runs."""
        if self._child is not None and self._child.poll() is None:
            self._kill()
            try:
                self._child.wait(_GIVE_UP_SECONDS)
            except subprocess.TimeoutExpired:
                # It waits inside the kernel; it ends when the driver lets it go.
                return
        self._child = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _start(self, monotonic: float) -> None:
        self._started, self._killed = monotonic, False
        # A file, not a pipe: a tool that prints much must not wait for a reader.
        try:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
        except OSError as error:
            raise ReadFailed(f"{self._command[0]}: no room for its output: {error}") from error
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        except FileNotFoundError as error:
            self._output.close()
            self._started = float("-inf")
            raise NotHere(f"the program {self._command[0]} is not installed") from error
        except OSError as error:
            self._output.close()
            raise ReadFailed(f"{self._command[0]}: {error.strerror}") from error

    def _kill(self) -> None:
        assert self._child is not None
        self._killed = True
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It ended between the look and the kill.
            return

    def _finish(self) -> bytes:
        assert self._child is not None
        assert self._output is not None
        code = self._child.returncode
        self._output.seek(0)
        printed = self._output.read(MAX_OUTPUT_BYTES)
        self._output.close()
        self._child = self._output = None
        self._answered = True
        if self._killed:
            raise ReadFailed(
                f"{self._command[0]} did not answer within {self._deadline:g} s and was killed"
            )
        if code != 0 and not printed.strip():
            raise ReadFailed(f"{self._command[0]} ended with code {code} and said nothing")
        return printed
