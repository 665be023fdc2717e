"""Windows made harder while training: started lately, holes, sensors that the card lacks."""

from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX
from models.history import Track
from models.windows import MIN_ROWS, DeviceMinutes

Array = npt.NDArray[np.float32]

SENSOR_GROUPS: Final[tuple[tuple[str, ...], ...]] = (
    ("ecc_corrected_total", "ecc_uncorrected_total"),
    ("fan_vibration_hertz", "fan_vibration_g"),
    ("vrm_voltage_volts", "vrm_ripple_volts"),
    ("vrm_ripple_volts",),
    ("fan_speed_rpm", "fan_duty_ratio"),
    ("memory_temperature_celsius",),
    ("ambient_celsius",),
    ("pcie_link_width", "pcie_link_width_max"),
    ("utilization_ratio",),
    ("power_watts",),
    ("temperature_rate_celsius_per_second",),
)
"""Sensors that a kind of card, driver or rig has or lacks together."""
SHORT_SHARE: Final = 0.35
SHORT_MINUTES: Final = (75.0, 420.0)
_GROUP_COLUMNS: Final = tuple(
    [i for name, i in COLUMN_INDEX.items() if name.startswith(tuple(f"{s}_" for s in group))]
    for group in SENSOR_GROUPS
)


def augment(rows_BTC: Array, rng: np.random.Generator, share: float) -> Array:
    """Change about ``share`` of the windows, in place; also returns them.

    A changed window keeps its last 30 to 59 minutes only (a card just switched on), or loses
    one to three groups of sensors, or a few minutes somewhere but not its newest.
    """
    length = rows_BTC.shape[1]
    for b in np.flatnonzero(rng.random(len(rows_BTC)) < share):
        what = rng.random()
        if what < 0.35:
            rows_BTC[b, : length - int(rng.integers(MIN_ROWS, length))] = np.nan
        elif what < 0.9:
            for g in rng.choice(len(_GROUP_COLUMNS), int(rng.integers(1, 4)), replace=False):
                rows_BTC[b][:, _GROUP_COLUMNS[g]] = np.nan
        else:
            at = int(rng.integers(0, length - 6))
            rows_BTC[b, at : at + int(rng.integers(1, 6))] = np.nan
    return rows_BTC


def short_histories(
    device: DeviceMinutes,
    minute_B: npt.NDArray[np.int64],
    sums_BS: Array,
    rng: np.random.Generator,
) -> Array:
    """About a third of the histories ``sums_BS`` as if the card had come a few hours ago only.

    Cards are new to the stream when it is installed, and after a repair. In place; also returned.
    """
    low, high = np.log(SHORT_MINUTES)
    for b in np.flatnonzero(rng.random(len(minute_B)) < SHORT_SHARE):
        since = minute_B[b] - int(np.exp(rng.uniform(low, high)))
        begin, end = np.searchsorted(device.minute_M, (since, minute_B[b] + 1))
        part = Track(device.minute_M[begin:end], device.rows_MC[begin:end])
        sums_BS[b] = part.at(minute_B[b : b + 1])[0]
    return sums_BS
