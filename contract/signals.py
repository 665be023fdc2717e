"""The one table of sensor names, units and plausible ranges (contracts section 1).

Adding a signal is one line here; validation, minute rows, features, metrics and the docs
follow from it.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One sensor of a card.

    ``low`` and ``high`` bound what is physically plausible, inclusive, in ``unit``; a value
    outside becomes null and is counted. ``fraction_bits`` is the binary resolution (2**-bits
    units) at which the minute rows add a gauge up, chosen so that the sum of 1,200 squares
    stays inside a signed 64-bit integer: integer sums do not depend on the order of arrival.
    """

    name: str
    unit: str
    low: float
    high: float
    kind: Kind
    fraction_bits: int
    meaning: str


MAX_COUNT: Final = float(2**53)

SIGNALS: Final[tuple[Signal, ...]] = (
    Signal("temperature_celsius", "°C", -20, 150, "gauge", 12, "core (ASIC) temperature"),
    Signal(
        "temperature_rate_celsius_per_second",
        "°C/s",
        -20,
        20,
        "gauge",
        18,
        "dT/dt by the agent's own clock",
    ),
    Signal("memory_temperature_celsius", "°C", -20, 150, "gauge", 12, "hottest memory sensor"),
    Signal(
        "ecc_corrected_total",
        "count",
        0,
        MAX_COUNT,
        "counter",
        0,
        "corrected memory errors since the driver was loaded",
    ),
    Signal(
        "ecc_uncorrected_total",
        "count",
        0,
        MAX_COUNT,
        "counter",
        0,
        "uncorrected memory errors since the driver was loaded",
    ),
    Signal("vrm_voltage_volts", "V", 0, 60, "gauge", 18, "regulator supply voltage"),
    Signal(
        "vrm_ripple_volts",
        "V",
        0,
        10,
        "gauge",
        20,
        "regulator ripple, peak to peak over the sampling burst",
    ),
    Signal("fan_speed_rpm", "rpm", 0, 30_000, "gauge", 6, "measured fan speed"),
    Signal("fan_duty_ratio", "ratio", 0, 1.2, "gauge", 20, "commanded fan duty"),
    Signal(
        "fan_vibration_hertz",
        "Hz",
        0,
        20_000,
        "gauge",
        8,
        "dominant line of the bearing's vibration",
    ),
    Signal("fan_vibration_g", "g", 0, 50, "gauge", 18, "bearing vibration, RMS"),
    Signal("power_watts", "W", 0, 1_500, "gauge", 10, "board power"),
    Signal("utilization_ratio", "ratio", 0, 1, "gauge", 20, "compute utilisation"),
    Signal("pcie_link_width", "lanes", 0, 32, "gauge", 4, "negotiated PCIe width"),
    Signal("pcie_link_width_max", "lanes", 0, 32, "gauge", 4, "possible PCIe width"),
    Signal("ambient_celsius", "°C", -40, 80, "gauge", 12, "rig inlet temperature"),
)

SIGNAL_NAMES: Final[tuple[str, ...]] = tuple(s.name for s in SIGNALS)
BY_NAME: Final[dict[str, Signal]] = {s.name: s for s in SIGNALS}
GAUGES: Final[tuple[Signal, ...]] = tuple(s for s in SIGNALS if s.kind == "gauge")
COUNTERS: Final[tuple[Signal, ...]] = tuple(s for s in SIGNALS if s.kind == "counter")

STATES: Final[tuple[str, ...]] = ("ok", "lost", "unresponsive", "unknown")
"""``state`` of a device in a telemetry message."""
