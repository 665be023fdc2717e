"""What a card was like: its own commissioning baseline, a few sums a card, updated once a minute.

A window of an hour shows what changes within an hour. Paste and dust take days, so the stream
remembers of every card how its quantities went with the load: for each *relation* (the rise over
the inlet against power and fan, ripple against power, vibration against speed, …) the sums of a
linear regression. A minute row enters them when it is :data:`AGE_MINUTES` old, so that what is
being judged is not among what it is judged by; old rows fade over :data:`MEMORY_MINUTES`.

Shapes: B cards, T minutes of a window (60), C minute-row columns, K relations, P = 4 regressors
(1, u1, u2, u3), S = K · 15 sums. The same functions in training and serving.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX, COLUMNS, WINDOW_MINUTES
from models.windows import DeviceMinutes

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

LAG_MINUTES: Final = 8
"""Minutes before a row that its smoothed power looks at: a heatsink follows within minutes."""
AGE_MINUTES: Final = WINDOW_MINUTES - 1 - LAG_MINUTES
"""Age at which a row enters: the oldest of a window that has its lag before it."""
MEMORY_MINUTES: Final = 2880.0
"""After this many minutes with a value its weight has fallen to 1/e."""
_LAG_DECAY: Final = 0.72  # a minute; time constant of three minutes, as small heatsinks have
_FADE: Final = 1 - 1 / MEMORY_MINUTES
_PAIRS: Final = tuple((p, q) for p in range(4) for q in range(p, 4))
_SUMS: Final = len(_PAIRS) + 5
_ENOUGH: Final = 15.0
"""Minutes of history under which a relation says nothing."""
_SLOPE_SD: Final = 1.0
"""Prior standard deviation of the slopes, in scaled units."""
_BLOCK: Final = 100_000
BOUND_Z: Final = 20.0
BOUND_UNITS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Relation:
    """A quantity, scaled, as a linear function of up to three others; ``floor`` is the least
    residual standard deviation that is believed, in scaled units.
    """

    name: str
    floor: float


RELATIONS: Final[tuple[Relation, ...]] = (
    # °C over the inlet / 20, of the power (the heatsink's and the die's share) and the fan
    Relation("rise_of_power_and_duty", 0.03),
    Relation("rise_of_power", 0.05),  # the same with the inlet instead of the fan
    Relation("duty_of_power", 0.06),  # duty / 0.25: a fan that holds a target hides the rise
    Relation("memory_over_core", 0.05),  # °C / 10
    Relation("rpm_of_duty", 0.04),  # ln(rpm / 2000) / 0.5
    Relation("vibration_of_rpm", 0.1),  # ln(g / 0.1)
    Relation("vibration_order", 0.03),  # turns of the line a turn of the fan
    Relation("ripple_of_power", 0.06),  # ln(V / 0.05)
    Relation("voltage_of_power", 0.1),  # ln(V / 12) / 0.01
    Relation("corrected_errors", 0.1),  # ln(1 + errors a minute)
)
K: Final = len(RELATIONS)
SUMS: Final = K * _SUMS
_FLOOR_K: Final = np.array([r.floor for r in RELATIONS])
PARTS: Final = ("z_5", "z_20", "units_20", "units_change", "units_50")
HISTORY_FEATURES: Final[tuple[str, ...]] = tuple(
    f"{r.name}:{part}" for part in PARTS for r in RELATIONS
)
"""Order of the last axis of :func:`history_features`."""


def empty(count: int) -> Array:
    """The sums of cards that nothing is known of: float32 [B, S]."""
    return np.zeros((count, SUMS), np.float32)


def _lagged(value_BT: AnyFloats) -> AnyFloats:
    """Weighted mean of each minute and the eight before it, NaN without any."""
    there = np.isfinite(value_BT)
    filled = np.where(there, value_BT, np.float32(0))
    total, weight = filled.copy(), there.astype(np.float32)
    part = weight.copy()
    for lag in range(1, min(LAG_MINUTES, value_BT.shape[1] - 1) + 1):
        share = np.float32(_LAG_DECAY**lag)
        total[:, lag:] += share * filled[:, :-lag]
        part[:, lag:] += share * weight[:, :-lag]
    result = total / np.where(part > 0, part, np.float32(np.nan))
    return np.where(there, result, np.float32(np.nan))


def quantities(rows_BTC: Array) -> tuple[Array, Array]:
    """Scaled quantities y [B, T, K], NaN where missing, and regressors x [B, T, K, P]."""
    with np.errstate(all="ignore"):
        return _quantities(rows_BTC)


def _quantities(rows_BTC: Array) -> tuple[Array, Array]:
    def mean(name: str) -> Array:
        value: Array = rows_BTC[:, :, COLUMN_INDEX[name + "_mean"]]
        return value

    temperature, ambient = mean("temperature_celsius"), mean("ambient_celsius")
    inlet = np.where(np.isfinite(ambient), ambient, np.float32(25))
    power = np.clip(mean("power_watts"), 0, 2000) / 100
    lagged, fan = _lagged(power), mean("fan_duty_ratio")
    rpm = mean("fan_speed_rpm")
    turns, speed = np.where(rpm >= 60, rpm, np.nan), np.log(np.maximum(rpm, 60) / 2000)
    rise, air = (temperature - inlet) / 20, (inlet - 25) / 10
    over_core = (mean("memory_temperature_celsius") - temperature) / 10
    none = np.zeros_like(air)
    ripple = np.log(np.maximum(mean("vrm_ripple_volts"), 1e-4) / 0.05)
    # A core voltage is no 12 V rail; only its changes matter here.
    volts = np.log(np.maximum(mean("vrm_voltage_volts"), 0.1) / 12) / 0.01
    errors = np.log1p(np.clip(rows_BTC[:, :, COLUMN_INDEX["ecc_corrected_total_increase"]], 0, 1e6))
    each: tuple[tuple[AnyFloats, AnyFloats, AnyFloats, AnyFloats], ...] = (
        (rise, lagged, power, fan),
        (rise, lagged, power, air),
        (fan / 0.25, lagged, power, air),
        (over_core, lagged, power, fan),
        (np.where(fan >= 0.05, speed / 0.5, np.nan), np.log(np.maximum(fan, 0.05)), fan, none),
        (np.log(np.maximum(mean("fan_vibration_g"), 1e-3) / 0.1), speed, none, none),
        (mean("fan_vibration_hertz") * 60 / turns, speed, none, none),
        (ripple, power, (temperature - 60) / 20, none),
        (volts, power, none, none),
        (errors, none, none, none),
    )
    y_BTK = np.stack([one[0] for one in each], axis=-1).astype(np.float32)
    x_BTKP = np.ones((*y_BTK.shape, 4), np.float32)
    for k, one in enumerate(each):
        for p in (1, 2, 3):
            x_BTKP[:, :, k, p] = one[p]
    # Without one of its regressors a quantity says nothing; nor does a card that is lost or hangs.
    y_BTK[~(np.isfinite(y_BTK) & np.isfinite(x_BTKP).all(axis=-1))] = np.nan
    y_BTK[~(rows_BTC[:, :, COLUMN_INDEX["samples_ok"]] > 0)] = np.nan
    return np.clip(y_BTK, -50, 50), np.nan_to_num(np.clip(x_BTKP, -20, 20))


def _products(y_NK: Array, x_NKP: Array) -> Floats:
    """What a minute adds to the sums [N, K, 15]: 0 where its quantity is missing."""
    y, x = y_NK.astype(np.float64), x_NKP.astype(np.float64)
    parts = [x[..., p] * x[..., q] for p, q in _PAIRS]
    parts += [x[..., p] * y for p in range(4)]
    sums = np.stack([*parts, y * y], axis=-1)
    return np.where(np.isnan(y)[..., None], 0.0, sums)


def enter(sums_BS: Array, rows_BTC: Array) -> Array:
    """The sums after the row that is :data:`AGE_MINUTES` old has entered: float32 [B, S].

    ``rows_BTC`` are windows of sixty rows, oldest first. To be called once a card and minute.
    """
    part_BTC = rows_BTC[:, : LAG_MINUTES + 1]
    y_BTK, x_BTKP = quantities(part_BTC)
    added_BKS = _products(y_BTK[:, -1], x_BTKP[:, -1])
    sums = sums_BS.astype(np.float64).reshape(len(sums_BS), K, _SUMS)
    there = added_BKS[..., :1] > 0
    sums = np.where(there, sums * _FADE, sums) + added_BKS
    return sums.reshape(len(sums_BS), SUMS).astype(np.float32)


def track(device: DeviceMinutes) -> "Track":
    """The sums of a card as they stand at each of its minutes."""
    return Track(device.minute_M, device.rows_MC)


class Track:
    """A card's sums over time, computed at once; the same as :func:`enter` minute after minute."""

    def __init__(self, minute_M: Ints, rows_MC: Array) -> None:
        self._first = int(minute_M[0]) if len(minute_M) else 0
        length = int(minute_M[-1]) - self._first + 1 if len(minute_M) else 0
        dense = np.full((1, length, len(COLUMNS)), np.nan, np.float32)
        dense[0, minute_M - self._first] = rows_MC
        y_BTK, x_BTKP = quantities(dense)
        added = _products(y_BTK[0], x_BTKP[0])
        self._sums_LS = np.empty((length, SUMS), np.float32)
        carried = np.zeros((K, _SUMS))
        for at in range(0, length, _BLOCK):
            part = added[at : at + _BLOCK]
            age = np.cumsum(part[..., 0] > 0, axis=0)[..., None] * np.log(_FADE)
            sums = np.exp(age) * (carried + np.cumsum(part * np.exp(-age), axis=0))
            self._sums_LS[at : at + _BLOCK] = sums.reshape(len(part), SUMS)
            carried = sums[-1]

    def at(self, minute_N: Ints) -> Array:
        """The sums [N, S] that a scoring at the end of each of these Unix minutes uses."""
        index = minute_N - AGE_MINUTES - self._first
        if not len(self._sums_LS):
            return empty(len(minute_N))
        sums = self._sums_LS[np.clip(index, 0, len(self._sums_LS) - 1)]
        sums[index < 0] = 0
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Each card's relations: coefficients [B, K, P], inverse of the normal matrix [B, K, P, P],
    residual standard deviation [B, K] (scaled units), minutes of history [B, K].
    """

    beta_BKP: Array
    inverse_BKPP: Array
    sd_BK: Array
    minutes_BK: Array


def fit(sums_BS: Array) -> Fit:
    """Regressions from the sums, with a weak prior that slopes are within ±1 a scaled unit."""
    s = sums_BS.astype(np.float64).reshape(len(sums_BS), K, _SUMS)
    n = s[..., 0]
    normal = np.empty((len(s), K, 4, 4))
    for at, (p, q) in enumerate(_PAIRS):
        normal[..., p, q] = normal[..., q, p] = s[..., at]
    normal[..., 0, 0] += 1e-6
    for p in (1, 2, 3):
        normal[..., p, p] += np.square(_FLOOR_K / _SLOPE_SD)
    inverse, target = np.linalg.inv(normal), s[..., -5:-1]
    beta = (inverse @ target[..., None])[..., 0]
    left = np.maximum(s[..., -1] - (beta * target).sum(axis=-1), 0)
    sd = np.sqrt(np.maximum(left / np.maximum(n - 4, 1), np.square(_FLOOR_K)))
    return Fit(*(part.astype(np.float32) for part in (beta, inverse, sd, n)))


def means_and_deviations(sums_BS: Array) -> tuple[Floats, Floats, Floats]:
    """Of each quantity by itself: mean, standard deviation (scaled units) and minutes [B, K]."""
    s = sums_BS.astype(np.float64).reshape(len(sums_BS), K, _SUMS)
    n = s[..., 0]
    mean = s[..., -5] / np.maximum(n, 1)
    variance = s[..., -1] / np.maximum(n, 1) - np.square(mean)
    return mean, np.sqrt(np.maximum(variance, np.square(_FLOOR_K))), n


def history_features(sums_BS: Array, rows_BTC: Array) -> Array:
    """How a window departs from its card's history: float32 [B, H], finite and bounded.

    Per relation the mean departure of the last 5 and 20 minutes in predictive standard deviations
    (a load that the card never had makes them wide), that of the last 20 and 50 minutes in scaled
    units, and its change over the window. 0 without history. How long the history is stands
    nowhere: among cards of a recording age goes with its end, and so with failing.
    """
    found = fit(sums_BS)
    y_BTK, x_BTKP = quantities(rows_BTC)
    y_BTK, x_BTKP = y_BTK[:, LAG_MINUTES:], x_BTKP[:, LAG_MINUTES:]
    x_BKTP = np.ascontiguousarray(x_BTKP.transpose(0, 2, 1, 3))
    predicted = (x_BKTP @ found.beta_BKP[..., None])[..., 0].transpose(0, 2, 1)
    leverage = ((x_BKTP @ found.inverse_BKPP) * x_BKTP).sum(axis=-1).transpose(0, 2, 1)
    widened = np.sqrt(1 + np.maximum(leverage, 0))
    residual = (y_BTK - predicted) / widened
    residual[~np.broadcast_to((found.minutes_BK >= _ENOUGH)[:, None], residual.shape)] = np.nan
    z = np.clip(residual / found.sd_BK[:, None], -BOUND_Z, BOUND_Z)
    units = np.clip(residual, -BOUND_UNITS, BOUND_UNITS)
    parts = (
        _mean(z[:, -5:]),
        _mean(z[:, -20:]),
        _mean(units[:, -20:]),
        _mean(units[:, -10:]) - _mean(units[:, :20]),
        _mean(units),
    )
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _mean(values_BTK: Array) -> Array:
    """Mean over the minutes that are there, 0 without any."""
    there = np.isfinite(values_BTK)
    total = np.where(there, values_BTK, np.float32(0)).sum(axis=1)
    return np.asarray(total / np.maximum(there.sum(axis=1), 1), np.float32)
