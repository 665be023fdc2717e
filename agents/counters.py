"""Counters of devices that are narrower than what they count."""

from typing import Final

_NEAR: Final = 0.25
"""A fall counts as a wrap only from the last to the first quarter of the range; any other is a
reset (the driver was loaded again, the board was reset)."""


class WrappingCounter:
    """Continues a counter of ``bits`` width past its wraps.

    A wrap adds (4294967290 → 10 of 32 bits is +16); a reset starts at what the device says, so
    that the total falls, which every reader of the contract takes for a reset and never for a
    negative step.
    """

    __slots__ = ("_before", "_offset", "_range")

    def __init__(self, bits: int = 32) -> None:
        self._range = 2**bits
        self._before: int | None = None
        self._offset = 0

    def update(self, raw: int) -> int:
        """The total at the reading ``raw`` (0 to 2**bits - 1)."""
        before, self._before = self._before, raw
        if before is not None and raw < before:
            wrapped = before >= self._range * (1 - _NEAR) and raw < self._range * _NEAR
            self._offset = self._offset + self._range if wrapped else 0
        return self._offset + raw
