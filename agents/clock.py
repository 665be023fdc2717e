"""The agent's clocks: the wall's, and a simulated one that runs faster.

Nothing else in the agent knows which of the two it runs on.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from agents.source import Instant


class Clock(Protocol):
    """Event time: what the samples are stamped with and the schedule is kept by."""

    def instant(self) -> Instant:
        """This moment."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never steps, in event time."""
        ...

    def sleep_until(self, monotonic: float, stop: threading.Event) -> bool:
        """Wait until ``monotonic`` or until ``stop`` is set; whether the time was reached."""
        ...


class WallClock:
    """Event time is the system's time; intervals come from its monotonic clock."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self.monotonic = monotonic

    def instant(self) -> Instant:
        return Instant(self._wall(), self.monotonic())

    def sleep_until(self, monotonic: float, stop: threading.Event) -> bool:
        while not stop.is_set():
            remaining = monotonic - self.monotonic()
            if remaining <= 0:
                return True
            stop.wait(remaining)
        return False


class ScaledClock:
    """Event time runs ``speed`` times as fast as the wall: start + (wall − anchor) × speed.

    ``start`` is the event time, and ``anchor`` the wall time, of one and the same moment (both
    Unix seconds), so that several agents given the same three numbers share one clock. It shows
    whole multiples of ``resolution`` seconds since ``start``: at 60 seconds a second a wake-up
    that comes 5 ms late would otherwise move a sample by 0.3 s and spoil its dT/dt.
    """

    def __init__(
        self,
        speed: float,
        start: float,
        anchor: float,
        resolution: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speed = speed
        self._start = start
        self._resolution = resolution
        self._process_clock = monotonic
        # The wall is read once: a step of it later on must not make event time jump.
        self._zero = monotonic() - (wall() - anchor)

    def monotonic(self) -> float:
        return (self._process_clock() - self._zero) * self._speed

    def instant(self) -> Instant:
        # The thousandth keeps a wake-up that is exactly on time from rounding down.
        steps = math.floor(self.monotonic() / self._resolution + 1e-3)
        elapsed = steps * self._resolution
        return Instant(self._start + elapsed, elapsed)

    def sleep_until(self, monotonic: float, stop: threading.Event) -> bool:
        while not stop.is_set():
            remaining = (monotonic - self.monotonic()) / self._speed
            if remaining <= 0:
                return True
            stop.wait(remaining)
        return False
