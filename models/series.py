"""The table of series: which numbers a window's features are made of, and their scales.

References and scales are round numbers about what cards show; they only bring features near to
1, the network standardises them again.
"""

from dataclasses import dataclass
from typing import Final

from contract.signals import COUNTERS, SIGNALS


@dataclass(frozen=True, slots=True)
class Series:
    """How one series is scaled and which features it gives.

    ``reference`` and ``scale`` are in the signal's unit; a series with a ``floor`` is logarithmic:
    ln(value / reference), with values raised to the floor. ``gain`` multiplies delta and slope,
    ``spread`` is the standard deviation (relative to the mean, if logarithmic) worth noticing.
    """

    name: str
    kinds: str
    reference: float
    scale: float
    gain: float = 4.0
    floor: float | None = None
    spread: float = 1.0


SERIES: Final[tuple[Series, ...]] = (
    Series("temperature_celsius", "level delta slope spread peak", 60, 20, spread=2),
    Series("temperature_rate_celsius_per_second", "level spread peak", 0, 0.1, spread=0.1),
    Series("memory_temperature_celsius", "level delta slope", 75, 20, spread=2),
    Series("vrm_voltage_volts", "delta slope spread trough", 12, 0.1, 1, floor=0.1, spread=0.003),
    Series("vrm_ripple_volts", "level delta slope spread peak", 0.05, 1, 3, 1e-4, 0.1),
    Series("fan_speed_rpm", "level delta slope spread trough", 2000, 1000, spread=40),
    Series("fan_duty_ratio", "level delta slope", 0.5, 0.25),
    Series("fan_vibration_hertz", "delta slope spread", 50, 0.5, 2, floor=1, spread=0.05),
    Series("fan_vibration_g", "level delta slope spread peak", 0.1, 1, 3, 1e-3, 0.1),
    Series("power_watts", "level delta slope spread", 200, 100, 2, spread=10),
    Series("utilization_ratio", "level delta spread", 0.5, 0.5, 2, spread=0.1),
    Series("ambient_celsius", "level delta slope", 25, 10),
    # Derived from several signals, see models.features.
    Series("thermal_resistance", "level delta slope", 0.2, 0.7, 5, floor=0.005),
    Series("memory_over_core_celsius", "level delta slope", 10, 10, 3),
    Series("fan_rpm_per_duty", "level delta slope", 4000, 0.5, 4, floor=10),
    Series("vibration_per_rpm", "level delta slope", 0.05, 1, 3, floor=1e-4),
    Series("vibration_order", "level delta spread", 1, 1, 4, floor=0.05, spread=0.1),
    Series("ripple_at_load", "level delta slope", 0.05, 1, 3, floor=1e-4),
    Series("pcie_width_ratio", "level delta", 1, 0.5, 2),
)
TELEMETRY: Final = (
    "row_present",
    "samples_share",
    "samples_lost_share",
    "samples_unresponsive_share",
    "samples_unknown_share",
    "samples_missing_recent",
    "samples_failing_recent",
)
KINDS: Final = ("level", "delta", "slope", "spread", "peak", "trough")


def _picked(kind: str) -> list[int]:
    return [i for i, s in enumerate(SERIES) if kind in s.kinds.split()]


PICKED: Final = {kind: _picked(kind) for kind in KINDS}


def _names() -> tuple[str, ...]:
    names = [SERIES[i].name + ":" + kind for kind in KINDS for i in PICKED[kind]]
    names += [s.name + ":coverage" for s in SIGNALS]
    for counter in COUNTERS:
        names += [counter.name + ":" + kind for kind in ("increase", "recent", "window")]
    return (*names, *TELEMETRY)


FEATURES: Final[tuple[str, ...]] = _names()
"""Order of the last axis of every ``x_BTF``."""
