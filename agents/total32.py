"""Differences of counters that wrap or start again."""

from typing import Final

WRAP_32: Final = 2**32
_NEAR_TOP: Final = WRAP_32 // 4 * 3
_NEAR_ZERO: Final = WRAP_32 // 4


def delta_32(before: int, now: int) -> int | None:
    """Growth of a 32-bit counter between two reads, None where it was reset between them.

    A fall from the top quarter to the bottom one is a wrap, any other a reset: what a counter
    has counted since a reset is not known to be all of it.
    """
    if now >= before:
        return now - before
    if before >= _NEAR_TOP and now < _NEAR_ZERO:
        return now + WRAP_32 - before
    return None


class Total32:
    """A counter of 32 bits as one that only grows: ``total`` since the first read."""

    __slots__ = ("_last", "resets", "total")

    def __init__(self) -> None:
        self._last: int | None = None
        self.total = 0
        self.resets = 0

    def update(self, now: int) -> int:
        """The growth since the read before; 0 for the first, and across a reset."""
        before, self._last = self._last, now
        if before is None:
            return 0
        delta = delta_32(before, now)
        if delta is None:
            self.resets += 1
            return 0
        self.total += delta
        return delta
