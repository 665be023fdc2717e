"""Values that no sensor can have are null, and counted."""

import math
from collections import Counter
from typing import Final

from contract.signals import BY_NAME

Nulled = Counter[tuple[str, str]]
"""(sensor, reason) → how often a value was thrown away."""

ALL_ONES: Final = frozenset(
    (
        0xFFFFFFFF,  # what a dead PCIe function reads as
        0xFFFF,
        0x7FFFFFF0,  # dcgm's blank values: not found, not supported, not permitted
        0x7FFFFFF1,
        0x7FFFFFF2,
        0x7FFFFFF3,
        0x7FFFFFFFFFFFFFF0,
        0x7FFFFFFFFFFFFFF1,
        0x7FFFFFFFFFFFFFF2,
        0x7FFFFFFFFFFFFFF3,
        65_536_000,  # milli-°C of a hung Tenstorrent chip: 65536 °C
    )
)
"""Raw integers that stand for no value at all."""


def plausible(sensor: str, value: float | None, nulled: Nulled) -> float | None:
    """``value`` where it lies in the range of ``sensor`` (``contract.signals``), else None.

    What is thrown away is counted in ``nulled`` as ``not finite`` or ``out of range``.
    """
    if value is None:
        return None
    if not math.isfinite(value):
        nulled[sensor, "not finite"] += 1
        return None
    signal = BY_NAME[sensor]
    if not signal.low <= value <= signal.high:
        nulled[sensor, "out of range"] += 1
        return None
    return value
