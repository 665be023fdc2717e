"""Window → features: sixty minute rows of a card become numbers that a network can use.

One pure function, the same in training and in serving. Shapes: B windows, T minutes (60, the
oldest first), C minute-row columns, K series (signals and quantities derived from them),
F features.

A *series* is one number a minute on a scale where 1 is "worth noticing": linear for
temperatures and ratios, logarithmic for what grows by factors (ripple, vibration, thermal
resistance). Each gives some of

- ``level``: the value itself,
- ``delta``: against the mean of the window's first fifteen present minutes,
- ``slope``: mean of the last five minutes against the last twenty,
- ``spread``: standard deviation within the minute,
- ``peak`` / ``trough``: how far the minute's maximum / minimum lies from its mean,

and each signal its ``coverage``, the share of the minute's samples that carried it: 0 for a
sensor that the card does not have. What is missing is 0 after scaling, told apart by its
coverage; every feature lies within ±8, whatever comes in.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX, COLUMNS
from contract.signals import COUNTERS, SIGNALS, STATES
from models import history, series
from models.codehash import modules_hash
from models.series import FEATURES, PICKED, SERIES, Series

Array = npt.NDArray[np.float32]

BOUND: Final = 8.0
BASELINE_MINUTES: Final = 15
SHORT_MINUTES: Final = 5
LONG_MINUTES: Final = 20
LOAD_WATTS: Final = 30.0
"""Below this a card idles, and temperature over power says nothing of its cooler."""
_CHUNK: Final = 128
"""Windows computed at once, so that they stay in the processor's cache."""
ASSUMED_AMBIENT_CELSIUS: Final = 25.0
"""Stands in for a rig without an inlet sensor; the coverage of the sensor says so."""


FEATURES_VERSION: Final = modules_hash(
    (__file__, series.__file__, history.__file__), (*COLUMNS, *FEATURES)
)
"""Changes whenever the columns, the series or this module's code change."""


def _moving_sum(z: Array, minutes: int) -> Array:
    """Sum of the last ``minutes`` entries along the second last axis, by doubling."""
    total, width = z.copy(), 1
    for bit in bin(minutes)[3:]:
        total[..., width:, :] += total[..., :-width, :].copy()
        width *= 2
        if bit == "1":
            total[..., 1:, :] = total[..., :-1, :].copy()
            total[..., :1, :] = 0
            total += z
            width += 1
    return total


def _trailing_mean(z: Array, present: Array, minutes: int) -> Array:
    """Mean of the present values of the last ``minutes`` minutes, 0 without any."""
    count = np.maximum(_moving_sum(present, minutes), 1)
    return np.asarray(_moving_sum(z, minutes) / count, dtype=np.float32)


def _ratio(upper: Array, lower: Array, low: float) -> Array:
    """``upper / lower`` where ``lower`` is at least ``low``, NaN elsewhere."""
    return np.where(lower >= low, upper / np.maximum(lower, np.float32(low)), np.float32(np.nan))


def _derived(rows: "_Rows") -> dict[str, Array]:
    """Physical quantities [T, B] in their own unit, NaN where a part is missing."""
    temperature, ambient = rows["temperature_celsius_mean"], rows["ambient_celsius_mean"]
    rpm, vibration = rows["fan_speed_rpm_mean"], rows["fan_vibration_g_mean"]
    power = rows["power_watts_mean"]
    # The cooler follows the power within minutes.
    no_power = np.isnan(power)
    smooth = _trailing_mean(
        np.where(no_power, np.float32(0), power), (~no_power).astype(np.float32), SHORT_MINUTES
    )
    smooth[no_power] = np.nan
    rise = temperature - np.where(np.isnan(ambient), np.float32(ASSUMED_AMBIENT_CELSIUS), ambient)
    return {
        "thermal_resistance": _ratio(rise, smooth, LOAD_WATTS),
        "memory_over_core_celsius": rows["memory_temperature_celsius_mean"] - temperature,
        "fan_rpm_per_duty": _ratio(rpm, rows["fan_duty_ratio_mean"], 0.05),
        "vibration_per_rpm": vibration / (rpm / 1000 + np.float32(0.3)),
        "vibration_order": _ratio(rows["fan_vibration_hertz_mean"] * 60, rpm, 60.0),
        "ripple_at_load": rows["vrm_ripple_volts_mean"] / (power / 300 + np.float32(0.25)),
        "pcie_width_ratio": _ratio(
            rows["pcie_link_width_mean"], rows["pcie_link_width_max_mean"], 1.0
        ),
    }


def _scale(one: Series, value: Array) -> Array:
    if one.floor is not None:
        value = np.log(np.maximum(value, np.float32(one.floor)) / np.float32(one.reference))
        return value / np.float32(one.scale)
    return (value - np.float32(one.reference)) / np.float32(one.scale)


def _spread(one: Series, std: Array, mean: Array) -> Array:
    relative: Array = std
    if one.floor is not None:
        relative = np.divide(std, np.maximum(np.abs(mean), np.float32(one.floor)))
    return np.log1p(np.maximum(relative, np.float32(0)) / np.float32(one.spread))


def _clean(values: Array, bound: float = BOUND) -> Array:
    """In place: NaN becomes 0, the rest lies within the bound."""
    np.clip(values, -bound, bound, out=values)
    values[np.isnan(values)] = 0
    return values


class _Rows:
    """Columns of windows, each contiguous: float32 [T, B]."""

    def __init__(self, rows_BTC: Array) -> None:
        self._rows_CTB = np.ascontiguousarray(rows_BTC.transpose(2, 1, 0), dtype=np.float32)
        self._rows_CTB[np.isinf(self._rows_CTB)] = np.nan
        # Nothing plausible is larger; keeps products of two values inside float32.
        np.clip(self._rows_CTB, -1e16, 1e16, out=self._rows_CTB)

    def __getitem__(self, column: str) -> Array:
        column_TB: Array = self._rows_CTB[COLUMN_INDEX[column]]
        return column_TB


def features(rows_BTC: Array) -> Array:
    """Features of windows: float32 [B, T, F], always finite and within ±8.

    ``rows_BTC`` holds minute rows float32 [B, T, C] in the order of
    :data:`contract.minute.COLUMNS`, oldest first, NaN where a row or a value is missing;
    infinities count as missing. T is 60 in use; any length of 1 or more works.

    Raises:
        ValueError: when the last axis is not C long.
    """
    if rows_BTC.ndim != 3 or rows_BTC.shape[2] != len(COLUMNS):
        raise ValueError(f"rows_BTC has shape {rows_BTC.shape}, [B, T, {len(COLUMNS)}] expected")
    x_BTF = np.empty((*rows_BTC.shape[:2], len(FEATURES)), dtype=np.float32)
    with np.errstate(all="ignore"):
        for at in range(0, len(rows_BTC), _CHUNK):
            part = slice(at, at + _CHUNK)
            x_BTF[part] = _features(_Rows(rows_BTC[part])).transpose(2, 1, 0)
    return x_BTF


def _features(rows: _Rows) -> Array:
    """Features [F, T, B]."""
    derived = _derived(rows)
    values = [derived[s.name] if s.name in derived else rows[s.name + "_mean"] for s in SERIES]
    z = np.stack([_scale(s, v) for s, v in zip(SERIES, values, strict=True)])
    present = np.isfinite(z).astype(np.float32)
    _clean(z, 4 * BOUND)
    early = present * (np.cumsum(present, axis=1) <= BASELINE_MINUTES)
    base = (z * early).sum(axis=1, keepdims=True) / np.maximum(
        early.sum(axis=1, keepdims=True), np.float32(1)
    )
    gain = np.array([s.gain for s in SERIES], dtype=np.float32)[:, None, None]
    gained = present * gain
    slope = _trailing_mean(z, present, SHORT_MINUTES) - _trailing_mean(z, present, LONG_MINUTES)
    parts = [
        z[PICKED["level"]],
        ((z - base) * gained)[PICKED["delta"]],
        (slope * gained)[PICKED["slope"]],
    ]
    parts.append(
        np.stack(
            [
                _spread(SERIES[i], _within_minute(rows, i, "std"), values[i])
                for i in PICKED["spread"]
            ]
        )
    )
    for kind, statistic in (("peak", "max"), ("trough", "min")):
        parts.append(
            np.stack(
                [
                    (_scale(SERIES[i], _within_minute(rows, i, statistic)) - z[i]) * gained[i]
                    for i in PICKED[kind]
                ]
            )
        )
    parts += [_coverage(rows), _counters(rows), _telemetry(rows)]
    return np.concatenate([_clean(part) for part in parts])


def _within_minute(rows: _Rows, index: int, statistic: str) -> Array:
    name = SERIES[index].name
    if name == "vibration_order":  # varies within a minute as its line does
        rpm = np.maximum(rows["fan_speed_rpm_mean"], np.float32(60))
        return np.asarray(rows["fan_vibration_hertz_std"] * 60 / rpm, dtype=np.float32)
    return rows[name + "_" + statistic]


def _coverage(rows: _Rows) -> Array:
    samples = np.maximum(rows["samples"], np.float32(1))
    return np.stack([rows[s.name + "_count"] / samples for s in SIGNALS])


def _counters(rows: _Rows) -> Array:
    parts = []
    for counter in COUNTERS:
        first, last = rows[counter.name + "_first"], rows[counter.name + "_last"]
        total = np.maximum(np.nan_to_num(rows[counter.name + "_increase"]), np.float32(0))
        # The step from the last minute before that had samples; a decrease is a reset.
        step = first[1:] - _forward_filled(last)[:-1]
        total[1:] += np.maximum(np.nan_to_num(step), np.float32(0))
        np.minimum(total, np.float32(1e6), out=total)
        recent = _moving_sum(total, SHORT_MINUTES)
        parts += [
            np.log1p(total),
            np.log1p(recent) / 2,
            np.log1p(np.cumsum(total, axis=0, dtype=np.float32)) / 2,
        ]
    return np.stack(parts)


def _forward_filled(values: Array) -> Array:
    """``values`` [T, B] with NaN replaced by the value before it, where there is one."""
    at = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    return np.take_along_axis(values, np.maximum.accumulate(at, axis=0), axis=0)


def _telemetry(rows: _Rows) -> Array:
    samples = np.maximum(np.nan_to_num(rows["samples"]), np.float32(0))
    present = samples > 0
    # Rows before the first one are a start, not a loss.
    started = np.maximum.accumulate(present, axis=0).astype(np.float32)
    share = samples / np.maximum(samples.max(axis=0), np.float32(1))
    by_state = [
        np.nan_to_num(rows["samples_" + state]) / np.maximum(samples, np.float32(1))
        for state in STATES
        if state != "ok"
    ]
    missing: Array = (1 - share) * started
    failing: Array = np.clip(by_state[0] + by_state[1], 0, 1)
    recent = [_trailing_mean(part, started, LONG_MINUTES) * 4 for part in (missing, failing)]
    return np.stack([present.astype(np.float32), share, *by_state, *recent])


def aggregates(x_BTF: Array) -> Array:
    """What the baselines see of a window: float32 [B, 4 F].

    Last minute, means of the last ten minutes and of the whole window, range over the window.
    """
    last, whole = x_BTF[:, -1], x_BTF.mean(axis=1)
    recent = x_BTF[:, -10:].mean(axis=1)
    span = x_BTF.max(axis=1) - x_BTF.min(axis=1)
    return np.concatenate([last, recent, whole, span], axis=1, dtype=np.float32)


AGGREGATES: Final[tuple[str, ...]] = tuple(
    name + "|" + kind for kind in ("last", "recent", "mean", "range") for name in FEATURES
)
"""Names of the columns of :func:`aggregates`."""
