"""What failures and harmless episodes may change about a card: one array [D] an effect."""

from typing import Final

import numpy as np

from simulator.streams import F64

HEALTHY: Final[dict[str, float]] = {
    "bearing_wear": 0.0,  # 0 new … 1 about to seize: vibration, rpm jitter, drag
    "fan_blocked": 0.0,  # 1 = the rotor stands still whatever the duty
    "blockage": 0.0,  # share of the heatsink's air path that dust has closed
    "paste_factor": 1.0,  # thermal resistance die to heatsink, times
    "pad_factor": 1.0,  # thermal resistance memory to heatsink, times
    "esr_factor": 1.0,  # series resistance of the regulator's capacitors, times
    "regulator_loss": 0.0,  # more power at equal load, share
    "power_unrest": 0.0,  # more noise on the board's power, share
    "corrected_per_hour": 0.0,  # ECC events beyond the card's own background
    "uncorrected_per_hour": 0.0,
    "lanes_lost": 0.0,  # how often the PCIe width has halved
    "hangs_per_hour": 0.0,  # reads that begin to fail
    "hang_seconds": 20.0,  # … and for how long, on average
    "rail_sag_volts": 0.0,
    "supply_resistance_factor": 1.0,
    "duty_offset": 0.0,  # a changed fan curve
    "room_celsius": 0.0,  # warmer air at the inlet
    "shaking_g": 0.0,
    "utilization": np.nan,  # a load imposed from outside; NaN = the jobs decide
    "silent": 0.0,  # 1 = no rows at all: network or agent away
    "zero_counters": 0.0,  # 1 = the driver was reloaded at this tick
}


class Effects:
    """The effects of this tick on D cards; :meth:`reset` makes all of them healthy again."""

    def __init__(self, count: int) -> None:
        self._healthy_E1 = np.array(list(HEALTHY.values()))[:, None]
        self._values_ED = np.repeat(self._healthy_E1, count, axis=1)
        self._rows: dict[str, F64] = dict(zip(HEALTHY, self._values_ED, strict=True))

    def reset(self) -> None:
        """Healthy, all of them."""
        self._values_ED[:] = self._healthy_E1

    def __getitem__(self, name: str) -> F64:
        """The effect's array [D], to be read and changed in place.

        Raises:
            KeyError: when there is no such effect.
        """
        return self._rows[name]
