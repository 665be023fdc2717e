"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends everything at once."""

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType


class Interrupts:
    """Context manager around the main task. ``received`` is the signal that came, if any."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.received: signal.Signals | None = None
        self._at_once = at_once
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> "Interrupts":
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.received is not None:
            self._at_once()
            return
        self.received = number
        if self._task is not None:
            self._task.cancel()
