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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX, COLUMNS
from contract.signals import COUNTERS, SIGNALS, STATES
from models.codehash import module_hash

Array = npt.NDArray[np.float32]

BOUND: Final = 8.0
BASELINE_MINUTES: Final = 15
SHORT_MINUTES: Final = 5
LONG_MINUTES: Final = 20
LOAD_WATTS: Final = 30.0
"""Below this a card idles, and temperature over power says nothing of its cooler."""
ASSUMED_AMBIENT_CELSIUS: Final = 25.0
"""Stands in for a rig without an inlet sensor; the coverage of the sensor says so."""


@dataclass(frozen=True, slots=True)
class Series:
    """How one series is scaled and which features it gives.

    ``reference`` and ``scale`` are in the signal's unit; a logarithmic series is
    ln(value / reference), with values raised to ``floor``. ``gain`` multiplies delta and slope.
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
    # Derived: named below in _derived.
    Series("thermal_resistance", "level delta slope", 0.2, 0.7, 5, floor=0.005),
    Series("memory_over_core_celsius", "level delta slope", 10, 10, 3),
    Series("fan_rpm_per_duty", "level delta slope", 4000, 0.5, 4, floor=10),
    Series("vibration_per_rpm", "level delta slope", 0.05, 1, 3, floor=1e-4),
    Series("vibration_order", "level delta spread", 1, 1, 4, floor=0.05, spread=0.1),
    Series("ripple_at_load", "level delta slope", 0.05, 1, 3, floor=1e-4),
    Series("pcie_width_ratio", "level delta", 1, 0.5, 2),
)
_SERIES_INDEX: Final = {s.name: i for i, s in enumerate(SERIES)}
_LOGARITHMIC: Final = frozenset(
    ("vrm_voltage_volts", "vrm_ripple_volts", "fan_vibration_hertz", "fan_vibration_g",
     "thermal_resistance", "fan_rpm_per_duty", "vibration_per_rpm", "vibration_order",
     "ripple_at_load")
)
_TELEMETRY: Final = (
    "row_present", "samples_share", "samples_lost_share", "samples_unresponsive_share",
    "samples_unknown_share", "samples_missing_recent", "samples_failing_recent",
)
_KINDS: Final = ("level", "delta", "slope", "spread", "peak", "trough")


def _picked(kind: str) -> list[int]:
    return [i for i, s in enumerate(SERIES) if kind in s.kinds.split()]


_PICKED: Final = {kind: _picked(kind) for kind in _KINDS}


def _names() -> tuple[str, ...]:
    names = [SERIES[i].name + ":" + kind for kind in _KINDS for i in _PICKED[kind]]
    names += [s.name + ":coverage" for s in SIGNALS]
    for counter in COUNTERS:
        names += [counter.name + ":" + kind for kind in ("increase", "recent", "window")]
    return (*names, *_TELEMETRY)


FEATURES: Final[tuple[str, ...]] = _names()
"""Order of the last axis of every ``x_BTF``."""
FEATURES_VERSION: Final = module_hash(__file__, (*COLUMNS, *FEATURES))
"""Changes whenever the columns, the features or this module's code change."""


def _column(rows_BTC: Array, name: str) -> Array:
    return rows_BTC[:, :, COLUMN_INDEX[name]]


def _ratio(upper: Array, lower: Array, low: float) -> Array:
    """``upper / lower`` where ``lower`` is at least ``low``, NaN elsewhere."""
    return np.where(lower >= low, upper / np.maximum(lower, low), np.nan).astype(np.float32)


def _trailing_mean(z: Array, present: Array, minutes: int) -> Array:
    """Mean of the present values of the last ``minutes`` minutes [B, T, K], 0 without any."""
    total = np.cumsum(z, axis=1)
    count = np.cumsum(present, axis=1)
    if z.shape[1] > minutes:
        total[:, minutes:] -= total[:, :-minutes].copy()
        count[:, minutes:] -= count[:, :-minutes].copy()
    return np.asarray(total / np.maximum(count, 1), dtype=np.float32)


def _derived(mean: Callable[[str], Array], smooth_power: Array) -> dict[str, Array]:
    """Physical quantities [B, T] in their own unit, NaN where a part is missing."""
    temperature, ambient = mean("temperature_celsius"), mean("ambient_celsius")
    rpm, vibration = mean("fan_speed_rpm"), mean("fan_vibration_g")
    rise = temperature - np.where(np.isnan(ambient), ASSUMED_AMBIENT_CELSIUS, ambient)
    return {
        "thermal_resistance": _ratio(rise, smooth_power, LOAD_WATTS),
        "memory_over_core_celsius": mean("memory_temperature_celsius") - temperature,
        "fan_rpm_per_duty": _ratio(rpm, mean("fan_duty_ratio"), 0.05),
        "vibration_per_rpm": vibration / (rpm / 1000 + 0.3),
        "vibration_order": _ratio(mean("fan_vibration_hertz") * 60, rpm, 60.0),
        "ripple_at_load": mean("vrm_ripple_volts") / (0.25 + mean("power_watts") / 300),
        "pcie_width_ratio": _ratio(mean("pcie_link_width"), mean("pcie_link_width_max"), 1.0),
    }


def _scale(series: Series, value: Array) -> Array:
    if series.name in _LOGARITHMIC:
        floor = series.floor if series.floor is not None else 1e-6
        value = np.log(np.maximum(value, floor) / series.reference)
        return np.asarray(value / series.scale, dtype=np.float32)
    return np.asarray((value - series.reference) / series.scale, dtype=np.float32)


def _spread(series: Series, std: Array, mean: Array) -> Array:
    if series.name in _LOGARITHMIC:
        std = std / np.maximum(np.abs(mean), series.floor or 1e-6)
    return np.asarray(np.log1p(np.maximum(std, 0) / series.spread), dtype=np.float32)


def _clean(values: Array, bound: float = BOUND) -> Array:
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=bound, neginf=-bound), -bound, bound)


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
    with np.errstate(all="ignore"):
        rows = np.where(np.isfinite(rows_BTC), rows_BTC, np.nan).astype(np.float32, copy=False)
        # Nothing plausible is larger; keeps products of two values inside float32.
        rows = np.clip(rows, -1e16, 1e16)
        return _features(rows)


def _features(rows: Array) -> Array:
    def mean(signal: str) -> Array:
        return _column(rows, signal + "_mean")

    power = mean("power_watts")[:, :, None]
    has_power = ~np.isnan(power)
    smooth = _trailing_mean(
        np.nan_to_num(power), has_power.astype(np.float32), SHORT_MINUTES)[:, :, 0]
    derived = _derived(mean, np.where(has_power[:, :, 0], smooth, np.float32(np.nan)))
    values = [derived[s.name] if s.name in derived else mean(s.name) for s in SERIES]

    z = np.stack([_scale(s, v) for s, v in zip(SERIES, values, strict=True)], axis=2)
    present = np.isfinite(z)
    z = _clean(z, 4 * BOUND)
    present_number = present.astype(np.float32)
    early = present & (np.cumsum(present, axis=1) <= BASELINE_MINUTES)
    base = (z * early).sum(axis=1, keepdims=True) / np.maximum(
        early.sum(axis=1, keepdims=True), 1)
    gain = np.array([s.gain for s in SERIES], dtype=np.float32)
    short = _trailing_mean(z, present_number, SHORT_MINUTES)
    long = _trailing_mean(z, present_number, LONG_MINUTES)
    by_kind = {
        "level": z,
        "delta": (z - base) * gain * present_number,
        "slope": (short - long) * gain * present_number,
    }
    parts = [by_kind[kind][:, :, _PICKED[kind]] for kind in ("level", "delta", "slope")]
    parts.append(np.stack([
        _spread(SERIES[i], _within_minute(rows, i, "std"), values[i])
        for i in _PICKED["spread"]], axis=2))
    for kind, statistic in (("peak", "max"), ("trough", "min")):
        parts.append(np.stack([
            _scale(SERIES[i], _within_minute(rows, i, statistic)) * gain[i] - z[:, :, i] * gain[i]
            for i in _PICKED[kind]], axis=2))
    parts += [_coverage(rows), _counters(rows), _telemetry(rows)]
    return np.concatenate([_clean(part) for part in parts], axis=2, dtype=np.float32)


def _within_minute(rows: Array, index: int, statistic: str) -> Array:
    name = SERIES[index].name
    if name == "vibration_order":  # varies within a minute as its line does
        std = _column(rows, "fan_vibration_hertz_std")
        return std * 60 / np.maximum(_column(rows, "fan_speed_rpm_mean"), 60)
    return _column(rows, name + "_" + statistic)


def _coverage(rows: Array) -> Array:
    samples = np.maximum(_column(rows, "samples"), 1)
    return np.stack([_column(rows, s.name + "_count") / samples for s in SIGNALS], axis=2)


def _counters(rows: Array) -> Array:
    parts = []
    for counter in COUNTERS:
        first, last, increase = (
            _column(rows, counter.name + "_" + statistic).astype(np.float64)
            for statistic in ("first", "last", "increase")
        )
        # The step from the last minute before that had samples; a decrease is a reset.
        step = np.maximum(first[:, 1:] - _forward_filled(last)[:, :-1], 0)
        total = np.nan_to_num(np.maximum(increase, 0))
        total[:, 1:] += np.nan_to_num(step)
        total = np.minimum(total, 1e9)
        ones = np.ones_like(total)[:, :, None]
        recent = _trailing_mean(total[:, :, None], ones, SHORT_MINUTES)[:, :, 0]
        parts += [np.log1p(total), np.log1p(np.maximum(recent, 0) * SHORT_MINUTES) / 2,
                  np.log1p(np.cumsum(total, axis=1)) / 2]
    return np.stack(parts, axis=2).astype(np.float32)


def _forward_filled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``values`` [B, T] with NaN replaced by the value before it, where there is one."""
    at = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
    return np.take_along_axis(values, np.maximum.accumulate(at, axis=1), axis=1)


def _telemetry(rows: Array) -> Array:
    samples = np.nan_to_num(np.maximum(_column(rows, "samples"), 0))
    present = samples > 0
    # Rows before the first one are a start, not a loss.
    started = np.maximum.accumulate(present, axis=1)
    typical = np.maximum(samples.max(axis=1, keepdims=True), 1)
    share = samples / typical
    by_state = [
        np.nan_to_num(_column(rows, "samples_" + state)) / np.maximum(samples, 1)
        for state in STATES if state != "ok"
    ]
    missing = np.where(started, 1 - share, 0)[:, :, None]
    failing = np.clip(sum(by_state[:2]), 0, 1)[:, :, None]
    recent = [
        _trailing_mean(
            np.asarray(part, dtype=np.float32), started[:, :, None].astype(np.float32),
            LONG_MINUTES)[:, :, 0] * 4
        for part in (missing, failing)
    ]
    return np.stack([present.astype(np.float32), share, *by_state, *recent], axis=2)


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
