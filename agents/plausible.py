"""Which numbers of a device are no measurement: sentinels, and what cannot be.

Sentinels are what drivers write where they have nothing: all bits set, and the "blank" values
of NVIDIA's data centre tools (dcgm_fields.h: DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK
and the fifteen after each, which say why). docs/agents.md has the list for people.
"""

from typing import Final

from contract.signals import BY_NAME

_BLANKS: Final = (0x7FFF_FFF0, 2**47)
_ALL_BITS: Final = 0xFFFF_FFFF
_HUGE: Final = 2**63 - 2**10
"""DCGM_INT64_BLANK and all 64 bits set, as floats round them; nothing counts that far."""

SENTINEL: Final = "sentinel"
NOT_A_NUMBER: Final = "not a number"
OUT_OF_RANGE: Final = "out of range"


def is_sentinel(number: float) -> bool:
    """Whether ``number`` is what a driver writes where it has no value."""
    in_blanks = any(blank <= number <= blank + 15 for blank in _BLANKS)
    return number == _ALL_BITS or number >= _HUGE or in_blanks


def impossible(sensor: str, value: object) -> str | None:
    """Why ``value`` cannot be a reading of ``sensor``, in a word or two; None when it can.

    Sensors of ``contract.signals`` are held against their plausible range, others only against
    sentinels and below 0. None and NaN mean missing, which is no fault.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOT_A_NUMBER
    if value != value:
        return None
    if is_sentinel(value):
        return SENTINEL
    signal = BY_NAME.get(sensor)
    low, high = (0, 2**64) if signal is None else (signal.low, signal.high)
    return None if low <= value <= high else OUT_OF_RANGE
