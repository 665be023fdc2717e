"""Blocking calls run where they can be left behind: a stuck driver call costs its own device only.

A driver call that hangs cannot be cancelled, neither in a thread nor (in state D) in a child that
was killed. What can be done is not to wait for it. ``Lanes`` runs each device's call in a thread
of its own, all at once under one deadline, and leaves late ones behind. ``GuardedSource`` puts a
whole source behind the same deadline, for sources that block as one; ``agents.program`` runs
tools in children that are killed. docs/decisions/0030 says why threads.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from agents.source import DeviceReading, Instant, ReadLate, Source

T = TypeVar("T")

MAX_STUCK_PER_LANE: Final = 3
MAX_STUCK: Final = 32
"""Calls that may be left behind unreturned, of one lane and of all lanes of a ``Lanes``."""

FIRST_RETRY_SECONDS: Final = 60.0
"""A lane whose call is stuck is tried again with a fresh one after this, then after twice it."""


def deadline_seconds(interval_seconds: float) -> float:
    """How long a tick waits for a device: 2 s, or 0.4 of a shorter interval.

    A source that asks in two steps (the driver, then its cards) so stays inside its interval.
    """
    return min(2.0, 0.4 * interval_seconds)


def source_deadline_seconds(interval_seconds: float) -> float:
    """How long a tick waits for a whole source: 0.9 of the interval, 30 s at most."""
    return min(30.0, 0.9 * interval_seconds)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of one call: its value, the exception it raised, or nothing in time.

    ``late_seconds`` is how long ago the stuck call began; None when the call returned.
    """

    value: T | None = None
    error: Exception | None = None
    late_seconds: float | None = None

    def get(self) -> T:
        """The value.

        Raises:
            ReadLate: the call has not returned.
            Exception: what the call raised.
        """
        if self.late_seconds is not None:
            raise ReadLate(f"no answer for {self.late_seconds:.1f} s")
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None only where T admits it


class _Call(Generic[T]):
    """One call in a thread of its own. The thread is a daemon: it never keeps the process up."""

    __slots__ = ("_function", "_outcome", "_returned", "began")

    def __init__(self, name: str, function: Callable[[], T], now: float) -> None:
        self._function = function
        self._outcome: Outcome[T] = Outcome()
        self._returned = threading.Event()
        self.began = now
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:  # the system has no thread left to give
            self._outcome = Outcome(error=error)
            self._returned.set()

    def _run(self) -> None:
        try:
            self._outcome = Outcome(value=self._function())
        except Exception as error:  # noqa: BLE001  # carried to whoever asked, whatever it is
            self._outcome = Outcome(error=error)
        finally:
            self._returned.set()

    @property
    def stuck(self) -> bool:
        return not self._returned.is_set()

    def wait(self, seconds: float) -> Outcome[T] | None:
        """The outcome, or None when there is none within ``seconds``."""
        return self._outcome if self._returned.wait(max(0.0, seconds)) else None


@dataclass(slots=True)
class _Lane(Generic[T]):
    stuck: list[_Call[T]] = field(default_factory=list)
    retry_at: float = 0.0


class Lanes(Generic[T]):
    """Runs calls side by side, one lane a device, and waits for none longer than the deadline.

    A lane whose call is stuck is late at once, without waiting, until the call returns. After a
    minute it is tried with a fresh call, for a driver may have recovered and forgotten the old
    one; at most ``MAX_STUCK_PER_LANE`` are left behind in a lane, ``MAX_STUCK`` in all. The value
    of a call that returns too late is thrown away: it belongs to an instant that has passed.

    Not for use by several threads at once. ``left_behind`` counts the calls ever left behind.
    """

    def __init__(
        self,
        name: str,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._deadline = deadline_seconds
        self._clock = clock
        self._lanes: dict[str, _Lane[T]] = {}
        self.left_behind = 0

    @property
    def stuck(self) -> int:
        """How many calls are out now. A driver must not be closed under them."""
        return sum(call.stuck for lane in self._lanes.values() for call in lane.stuck)

    def run(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, Outcome[T]]:
        """Run every call in the lane of its key; the outcomes, in the order of ``calls``."""
        for key in list(self._lanes):
            lane = self._lanes[key]
            lane.stuck = [call for call in lane.stuck if call.stuck]
            if not lane.stuck:
                del self._lanes[key]
        begun: dict[str, _Call[T]] = {}
        for key, function in calls.items():
            if self._may_begin(key):
                begun[key] = _Call(f"{self._name} {key}", function, self._clock())
        # Waiting goes by the real clock: a fake one does not move while this thread sleeps.
        end = time.monotonic() + self._deadline
        outcomes: dict[str, Outcome[T]] = {}
        for key in calls:
            call = begun.get(key)
            outcome = None if call is None else call.wait(end - time.monotonic())
            if outcome is None:
                if call is not None:
                    self._leave_behind(key, call)
                outcome = Outcome(late_seconds=self._late_seconds(key))
            outcomes[key] = outcome
        return outcomes

    def _may_begin(self, key: str) -> bool:
        if self.stuck >= MAX_STUCK:
            return False
        lane = self._lanes.get(key)
        if lane is None:
            return True
        return len(lane.stuck) < MAX_STUCK_PER_LANE and self._clock() >= lane.retry_at

    def _leave_behind(self, key: str, call: _Call[T]) -> None:
        lane = self._lanes.setdefault(key, _Lane())
        lane.stuck.append(call)
        pause = FIRST_RETRY_SECONDS * 2 ** (len(lane.stuck) - 1) * random.uniform(0.8, 1.2)
        lane.retry_at = self._clock() + pause
        self.left_behind += 1

    def _late_seconds(self, key: str) -> float:
        lane = self._lanes.get(key)
        if lane is None:  # no room to begin it at all
            return self._deadline
        return max(self._deadline, self._clock() - lane.stuck[0].began)


class GuardedSource:
    """A source behind a deadline: a read that does not return is late, and the others go on.

    Wrap a source that blocks as a whole. One that can tell which of its devices hangs uses
    ``Lanes`` itself, with a shorter deadline. ``source`` is the one behind it.
    """

    def __init__(self, source: Source, deadline_seconds: float) -> None:
        self.name = source.name
        self.enumerates = source.enumerates
        self.source = source
        self._lanes: Lanes[list[DeviceReading]] = Lanes(source.name, deadline_seconds)

    def read(self, now: Instant) -> list[DeviceReading]:
        return self._lanes.run({"read": lambda: self.source.read(now)})["read"].get()

    def close(self) -> None:
        # A source that is stuck in a read would be stuck in closing too.
        if not self._lanes.stuck:
            self.source.close()
