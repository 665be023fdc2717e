"""Samples → minute rows, for whole tables at once.

The same statistics as ``stream.minutes`` computes message by message (fixed-point sums, so
that neither order nor chunks matter), for files that hold one row a device and sample.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX, COLUMNS, MINUTE_MS
from contract.signals import COUNTERS, GAUGES, SIGNAL_NAMES, SIGNALS, STATES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LOW_S: Final = np.array([s.low for s in SIGNALS])
_HIGH_S: Final = np.array([s.high for s in SIGNALS])
_GAUGE_S: Final = np.array([SIGNAL_NAMES.index(s.name) for s in GAUGES])
_SCALE_G: Final = np.array([2.0**s.fraction_bits for s in GAUGES])
_MAX: Final = np.iinfo(np.int64).max
_MIN: Final = np.iinfo(np.int64).min


class MinuteTable(NamedTuple):
    """Minute rows of several devices, sorted by device and minute.

    ``device_M`` codes, ``minute_M`` Unix minutes (ms // 60,000), ``rows_MC`` float64 [M, C].
    """

    device_M: Ints
    minute_M: Ints
    rows_MC: Floats


def reduce_samples(
    device_N: npt.NDArray[np.integer], ts_ms_N: Ints, state_N: npt.NDArray[np.uint8], x_NS: Floats
) -> MinuteTable:
    """Reduce N samples, in any order, to the minute rows of their devices.

    ``x_NS`` holds the signals in the order of ``contract.signals.SIGNALS``, NaN where missing;
    a value outside its plausible range counts as missing. ``state_N`` indexes ``STATES``.
    """
    order = np.lexsort((ts_ms_N, device_N))
    device, ts = device_N[order].astype(np.int64), ts_ms_N[order]
    minute = ts // MINUTE_MS
    new = np.r_[True, (device[1:] != device[:-1]) | (minute[1:] != minute[:-1])]
    starts = np.flatnonzero(new[: len(device)])
    rows = np.full((len(starts), len(COLUMNS)), np.nan)
    if not len(starts):
        return MinuteTable(device, minute, rows)
    x = x_NS[order]
    with np.errstate(invalid="ignore"):
        x[~((x >= _LOW_S) & (x <= _HIGH_S))] = np.nan
    rows[:, 0] = np.diff(np.r_[starts, len(device)])
    state = state_N[order]
    for k in range(len(STATES)):
        rows[:, 1 + k] = np.add.reduceat((state == k).astype(np.int64), starts)
    for g, gauge in enumerate(GAUGES):
        _fill_gauge(rows, gauge.name, x[:, _GAUGE_S[g]], _SCALE_G[g], starts)
    for counter in COUNTERS:
        _fill_counter(rows, counter.name, x[:, SIGNAL_NAMES.index(counter.name)], starts)
    return MinuteTable(device[starts], minute[starts], rows)


def _fill_gauge(rows: Floats, name: str, x: Floats, scale: float, starts: Ints) -> None:
    there = ~np.isnan(x)
    column = COLUMN_INDEX[name + "_mean"]
    count = np.add.reduceat(there.astype(np.int64), starts)
    rows[:, COLUMN_INDEX[name + "_count"]] = count
    if not there.any():
        return
    fixed = np.rint(np.where(there, x, 0) * scale).astype(np.int64)
    some, divisor = count > 0, np.maximum(count, 1)
    mean = np.add.reduceat(fixed, starts) / divisor
    variance = np.maximum(np.add.reduceat(fixed * fixed, starts) / divisor - mean * mean, 0)
    low = np.minimum.reduceat(np.where(there, fixed, _MAX), starts)
    high = np.maximum.reduceat(np.where(there, fixed, _MIN), starts)
    for offset, value in enumerate((mean, np.sqrt(variance), low, high)):
        rows[some, column + offset] = value[some] / scale


def _fill_counter(rows: Floats, name: str, x: Floats, starts: Ints) -> None:
    there = np.flatnonzero(~np.isnan(x))
    rows[:, COLUMN_INDEX[name + "_count"]] = 0
    if not len(there):
        return
    group = np.searchsorted(starts, there, side="right") - 1
    value = x[there]
    begins = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    at = group[begins]
    step = np.diff(value, prepend=value[0])
    step[begins] = 0
    ends = np.r_[begins[1:], len(value)]
    rows[at, COLUMN_INDEX[name + "_first"]] = value[begins]
    rows[at, COLUMN_INDEX[name + "_last"]] = value[ends - 1]
    rows[at, COLUMN_INDEX[name + "_increase"]] = np.add.reduceat(np.maximum(step, 0), begins)
    rows[at, COLUMN_INDEX[name + "_count"]] = ends - begins
