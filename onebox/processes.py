"""The supervisor: starts the parts as processes, watches them, ends them all.

Each child leads its own process group, so a Ctrl-C at the terminal reaches the supervisor
alone and the parts end in order. What the children start themselves (training jobs) is found
by a marker in the environment; :mod:`onebox.sentinel` does the same when the supervisor dies.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

from contract.errors import ConfigError, RigcanaryError
from onebox import sentinel
from onebox.child import ChildSpec
from onebox.logs import ChildLog, Echo

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "waiting", "stopping", "ended", "failed"]
Observer = Callable[[str, State, str], None]
"""Called with (child's name, its new state, detail) at every change."""

MAX_RESTARTS: Final = 8
"""Restarts in a row before a child is given up; a run of ``HEALTHY_SECONDS`` starts afresh."""
HEALTHY_SECONDS: Final = 60.0
_BACKOFF_SECONDS: Final = (0.5, 20.0)
_PROBE_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.05


class Child:
    """One part: its process of the moment, and its history."""

    def __init__(self, spec: ChildSpec, output: ChildLog) -> None:
        self.spec = spec
        self.output = output
        self.process: asyncio.subprocess.Process | None = None
        self.pump: asyncio.Task[None] | None = None
        self.watch: asyncio.Task[None] | None = None
        self.state: State = "starting"
        self.wanted = True
        self.restarts = 0
        self.crashed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id while the process runs."""
        running = self.process is not None and self.process.returncode is None
        return self.process.pid if running and self.process is not None else None


class Supervisor:
    """Owns the children of one run. Use as an async context manager; leaving it ends them.

    ``failed`` resolves with an exception when a child that must run was given up.
    """

    def __init__(
        self, log_folder: Path, *, observer: Observer | None = None, echo: Echo | None = None
    ) -> None:
        self.log_folder = log_folder
        self.run_id = uuid.uuid4().hex
        self.children: dict[str, Child] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._observer = observer
        self._echo = echo
        self._sentinel: subprocess.Popen[bytes] | None = None
        self._random = random.Random()

    async def __aenter__(self) -> "Supervisor":
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self._sentinel = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(sentinel.__file__)), self.run_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, spec: ChildSpec) -> Child:
        """Start a child and wait until it is ready.

        Raises:
            RigcanaryError: when it ended or was not ready in time, with its own last words.
        """
        before = self.children.get(spec.name)
        if before is not None:
            before.output.close()
        child = Child(spec, ChildLog(self.log_folder, spec.name, self._echo))
        child.restarts = before.restarts if before is not None else 0
        self.children[spec.name] = child
        self._change(child, "starting")
        process = await self._spawn(child)
        await self._await_ready(child, process)
        self._change(child, "ready")
        child.watch = asyncio.create_task(self._watch(child, process), name=f"watch {spec.name}")
        return child

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
        spec = child.spec
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    **spec.env,
                    sentinel.MARKER: self.run_id,
                },
                start_new_session=True,
            )
        except OSError as error:
            raise RigcanaryError(f"cannot start {spec.name} ({spec.argv[0]}): {error}") from error
        child.process = process
        if process.stdout is not None:
            child.pump = asyncio.create_task(child.output.pump(process.stdout))
        return process

    async def _await_ready(self, child: Child, process: asyncio.subprocess.Process) -> None:
        spec = child.spec
        deadline = time.monotonic() + spec.ready_seconds
        while True:
            if process.returncode is not None:
                await self._drain(child)
                raise self._death(child, "ended while starting")
            if spec.ready is None or await spec.ready():
                return
            if time.monotonic() > deadline:
                raise RigcanaryError(
                    f"{spec.name} was not ready within {spec.ready_seconds:.0f} s: "
                    f"{child.output.reason()} (log: {child.output.path})"
                )
            await asyncio.sleep(_PROBE_SECONDS)

    def _death(self, child: Child, what: str) -> RigcanaryError:
        code = child.process.returncode if child.process is not None else None
        message = (
            f"{child.spec.name} {what} (exit code {code}): {child.output.reason()} "
            f"(log: {child.output.path})"
        )
        return ConfigError(message) if code == ConfigError.exit_code else RigcanaryError(message)

    async def _drain(self, child: Child) -> None:
        """Wait briefly for the rest of the output: a grandchild may hold the pipe open."""
        if child.pump is not None:
            await asyncio.wait({child.pump}, timeout=1.0)

    async def _watch(self, child: Child, process: asyncio.subprocess.Process) -> None:
        in_a_row = 0
        while True:
            began = time.monotonic()
            await _ended(process)
            if not child.wanted:
                return
            await self._drain(child)
            if child.spec.may_end and process.returncode == 0:
                self._change(child, "ended")
                return
            error = self._death(child, "ended")
            child.crashed.set()
            if not child.spec.restart:
                self._change(child, "failed", str(error))
                return
            while True:
                in_a_row = 0 if time.monotonic() - began > HEALTHY_SECONDS else in_a_row
                in_a_row += 1
                if in_a_row > MAX_RESTARTS:
                    self._give_up(child, error)
                    return
                delay = self.backoff_seconds(in_a_row)
                self._change(child, "waiting", f"{error}; new start in {delay:.1f} s")
                await asyncio.sleep(delay)
                child.restarts += 1
                began = time.monotonic()
                try:
                    process = await self._spawn(child)
                    await self._await_ready(child, process)
                except RigcanaryError as again:
                    error = again
                    await self._terminate(child, child.spec.stop_seconds)
                    continue
                self._change(child, "ready", f"restarted, {child.restarts} in all")
                break

    def backoff_seconds(self, attempt: int) -> float:
        """Seconds before restart number ``attempt`` (from 1): doubling, bounded, jittered."""
        first, last = _BACKOFF_SECONDS
        return min(last, first * 2.0 ** (attempt - 1)) * self._random.uniform(0.5, 1.0)

    def _give_up(self, child: Child, error: RigcanaryError) -> None:
        self._change(child, "failed", str(error))
        if not self.failed.done():
            self.failed.set_exception(
                RigcanaryError(f"gave {child.spec.name} up after {MAX_RESTARTS} restarts: {error}")
            )

    async def stop(self, names: Iterable[str], seconds: float | None = None) -> None:
        """End these children side by side: TERM, a bounded wait, KILL of the group.

        ``seconds`` bounds the wait; each child's own ``stop_seconds`` unless given.
        """
        chosen = [self.children[n] for n in names if n in self.children]
        await asyncio.gather(
            *(
                self._stop_child(c, c.spec.stop_seconds if seconds is None else seconds)
                for c in chosen
                if c.state != "ended"
            )
        )

    async def _stop_child(self, child: Child, seconds: float) -> None:
        child.wanted = False
        if child.watch is not None and child.state == "waiting":
            child.watch.cancel()
        self._change(child, "stopping")
        await self._terminate(child, seconds)
        await self._drain(child)
        self._change(child, "ended")

    async def _terminate(self, child: Child, seconds: float) -> None:
        process = child.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(_ended(process), seconds)
        except TimeoutError:
            log.warning("%s did not end within %.0f s and was killed", child.spec.name, seconds)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await _ended(process)

    async def close(self) -> None:
        """End every child still there, then whatever they left behind. Idempotent."""
        await self.stop(list(self.children))
        await asyncio.to_thread(sentinel.sweep, self.run_id)
        self._finish()

    def kill(self) -> None:
        """End everything at once, without asking (a second Ctrl-C)."""
        for child in self.children.values():
            child.wanted = False
        sentinel.signal_all(sentinel.marked(self.run_id), signal.SIGKILL)

    def _finish(self) -> None:
        for child in self.children.values():
            for task in (child.watch, child.pump):
                if task is not None:
                    task.cancel()
            child.output.close()
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # taken note of, whoever was waiting
        if self._sentinel is not None and self._sentinel.stdin is not None:
            self._sentinel.stdin.close()
            self._sentinel.wait()
            self._sentinel = None

    def _change(self, child: Child, state: State, detail: str = "") -> None:
        child.state = state
        if detail:
            log.warning("%s: %s", child.spec.name, detail)
        if self._observer is not None:
            self._observer(child.spec.name, state, detail)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the process itself; asyncio's ``wait()`` also waits for whoever holds its pipe."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK_SECONDS)
