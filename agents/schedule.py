"""The cadence of an agent: ticks at start + k × interval, without drift and without overlap."""

import math
from dataclasses import dataclass

LATE_SHARE = 0.5
"""A tick that is due since less than this share of an interval still runs at once; an older one
is skipped, because two samples close together serve nobody."""


@dataclass
class Schedule:
    """Due times of ticks on a monotonic clock, in seconds.

    ``skipped`` counts the ticks that had passed when their turn came.
    """

    start: float
    interval: float
    tick: int = -1
    skipped: int = 0

    @classmethod
    def aligned(cls, now: float, interval: float) -> "Schedule":
        """A schedule whose ticks lie on multiples of ``interval``, the first not before ``now``."""
        return cls(math.ceil(now / interval) * interval, interval)

    def next_due(self, now: float) -> float:
        """Move on to the next tick at ``now`` and return when it is due."""
        oldest = math.ceil((now - self.start) / self.interval - LATE_SHARE)
        following = max(self.tick + 1, oldest)
        self.skipped += following - self.tick - 1
        self.tick = following
        return self.start + following * self.interval
