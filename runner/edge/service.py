"""The engine behind one thread, for callers that live in an event loop."""

import asyncio
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from contract.errors import ConfigError, RigcanaryError
from runner.edge.engine import Engine
from runner.edge.intake import Intake
from runner.edge.metrics import Metrics
from runner.edge.store import Store
from runner.launchers.choose import make_launcher
from runner.settings import RunnerSettings

log = logging.getLogger("rigcanary.runner")
P = ParamSpec("P")
R = TypeVar("R")
DATABASE_FILE: Final = "runner.db"
STALLED_SECONDS: Final = 30.0
"""Without a round for so long the runner calls itself stalled."""


class Service:
    """Owns the engine's thread: opens, turns and closes it."""

    def __init__(self, settings: RunnerSettings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._engine: Engine | None = None
        self._intake: Intake | None = None
        self._lock: int | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._last_round = time.monotonic()
        self.failed = False
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the rounds end by a defect; whoever serves then ends."""

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the service is not open")
        return self._engine

    @property
    def intake(self) -> Intake:
        if self._intake is None:
            raise RuntimeError("the service is not open")
        return self._intake

    @property
    def seconds_since_round(self) -> float:
        return time.monotonic() - self._last_round

    @property
    def stalled(self) -> bool:
        return self.seconds_since_round > STALLED_SECONDS

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function in the engine's thread, between its rounds."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    async def open(self) -> None:
        """Open the state and begin the rounds.

        Raises:
            ConfigError: when another runner uses the state folder.
            RigcanaryError: when the database cannot be used.
        """
        await self.call(self._open)
        self._rounds = asyncio.create_task(self._run_rounds())
        self._rounds.add_done_callback(self._rounds_ended)

    async def close(self) -> None:
        """End the rounds, the jobs' processes (with a checkpoint) and the database."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
        await self.call(self._close)
        self._executor.shutdown()

    def _rounds_ended(self, rounds: "asyncio.Task[None]") -> None:
        if not rounds.cancelled() and rounds.exception() is not None:
            log.critical("the rounds have failed, the runner ends", exc_info=rounds.exception())
            self.failed = True
            self.on_failure()

    def _open(self) -> None:
        self._lock = take_state(self.settings.state_dir)
        store = Store(self.settings.state_dir / DATABASE_FILE)
        launcher = make_launcher(self.settings)
        self._engine = Engine(
            self.settings, store, launcher, self.metrics, lambda: time.time_ns() // 1_000_000
        )
        self._intake = Intake(self._engine)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine.store.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _run_rounds(self) -> None:
        while True:
            try:
                await self.call(self.engine.tick)
                self._last_round = time.monotonic()
            except (sqlite3.Error, OSError) as error:
                self.metrics.errors.labels(type(error).__name__).inc()
                log.error("this round failed and is repeated: %s", error)
                await asyncio.sleep(1.0)
            await asyncio.sleep(self.settings.tick_seconds)


def take_state(folder: Path) -> int:
    """Lock a state folder for this process; the descriptor keeps the lock.

    Raises:
        ConfigError: when another runner holds it.
        RigcanaryError: when the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RigcanaryError(f"--state {folder}: cannot use it: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            f"--state {folder} is in use by another runner; stop that one, or give another folder"
        ) from error
    return descriptor
