"""A card's own history: the stream's minute-by-minute sums are those of training."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.minute import COLUMN_INDEX, COLUMNS, WINDOW_MINUTES
from models import history
from models.augment import short_histories
from models.history import HISTORY_FEATURES, SUMS, Track, empty, enter, history_features
from models.windows import DeviceMinutes, Outcome, gather

FIRST = 29_453_760
RISE = HISTORY_FEATURES.index("rise_of_power_and_duty:z_20")
UNITS = HISTORY_FEATURES.index("rise_of_power_and_duty:units_20")


def rows(minutes: int, seed: int = 0, *, resistance: float = 0.15, watts: float = 200.0):
    """A card whose rise is its resistance times its power; its load goes up and down."""
    rng = np.random.default_rng(seed)
    table = np.full((minutes, len(COLUMNS)), np.nan, np.float32)
    load = watts + 40 * np.sin(np.arange(minutes) / 17) + rng.normal(0, 5, minutes)
    for name, value in (
        ("samples", 12), ("samples_ok", 12), ("power_watts_mean", load),
        ("ambient_celsius_mean", 24 + rng.normal(0, 0.2, minutes)),
        ("fan_duty_ratio_mean", 0.5 + rng.normal(0, 0.01, minutes)),
        ("temperature_celsius_mean", 24 + resistance * load + rng.normal(0, 0.5, minutes)),
        ("ecc_corrected_total_increase", 0),
    ):  # fmt: skip
        table[:, COLUMN_INDEX[name]] = value
    return table


def window(minute_M, rows_MC, end):
    """The sixty rows that end with a Unix minute, whether or not that minute has a row."""
    shown = minute_M <= end
    blank = np.full((1, len(COLUMNS)), np.nan, np.float32)
    if not shown.any() or minute_M[shown][-1] != end:
        minute_M = np.r_[minute_M[shown], end]
        rows_MC = np.concatenate([rows_MC[shown], blank])
    at = np.flatnonzero(minute_M == end)
    return gather(minute_M, rows_MC, at)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), missing=st.floats(0, 0.6))
def test_minute_by_minute_is_the_same_as_at_once(seed, missing):
    rng = np.random.default_rng(seed)
    every = rows(150, seed)
    every[rng.random(every.shape) < missing / 3] = np.nan
    keep = rng.random(len(every)) >= missing
    keep[0] = True
    minute_M, rows_MC = FIRST + np.flatnonzero(keep), every[keep]
    track, sums = Track(minute_M, rows_MC), empty(1)
    for end in range(minute_M[0], minute_M[-1] + 1):
        sums = enter(sums, window(minute_M, rows_MC, end))
        np.testing.assert_allclose(track.at(np.array([end])), sums, rtol=1e-4, atol=1e-3)


def test_what_is_judged_is_not_in_what_it_is_judged_by():
    minute_M = FIRST + np.arange(300)
    rows_MC = rows(300)
    changed = rows_MC.copy()
    changed[-history.AGE_MINUTES :] *= 3
    end = minute_M[-1:]
    np.testing.assert_array_equal(
        Track(minute_M, rows_MC).at(end), Track(minute_M, changed).at(end)
    )


def test_a_worse_cooler_departs_and_a_sound_one_does_not():
    minute_M = FIRST + np.arange(1000)
    sums = Track(minute_M, rows(1000)).at(minute_M[-1:])
    sound = history_features(sums, rows(WINDOW_MINUTES, 5)[None])
    worse = history_features(sums, rows(WINDOW_MINUTES, 5, resistance=0.19)[None])
    assert abs(sound[0, RISE]) < 1
    assert worse[0, RISE] > 5
    # 0.04 K/W more at 200 W are 8 °C, in units of 20 °C
    assert worse[0, UNITS] == pytest.approx(0.4, abs=0.08)


def test_a_load_that_the_card_never_had_is_not_held_against_it():
    minute_M = FIRST + np.arange(1000)
    calm = rows(1000)
    calm[:, COLUMN_INDEX["power_watts_mean"]] = 100 + np.random.default_rng(1).normal(0, 0.1, 1000)
    calm[:, COLUMN_INDEX["temperature_celsius_mean"]] = 39.0
    sums = Track(minute_M, calm).at(minute_M[-1:])
    # Twice the power and a rise that a straight line would not give.
    loaded = history_features(sums, rows(WINDOW_MINUTES, 5, resistance=0.3)[None])
    assert abs(loaded[0, RISE]) < 3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_whatever_comes_in_the_features_are_finite_and_bounded(seed):
    rng = np.random.default_rng(seed)
    odd = np.array([np.nan, np.inf, -np.inf, 0, -5, 1e30, 60], np.float32)
    rows_BTC = rng.choice(odd, (4, WINDOW_MINUTES, len(COLUMNS)))
    rows_BTC[0] = np.nan
    sums = empty(4)
    for _ in range(40):
        sums = enter(sums, rows_BTC)
    assert np.isfinite(sums).all()
    h_BH = history_features(sums, rows_BTC)
    assert h_BH.shape == (4, len(HISTORY_FEATURES))
    assert np.isfinite(h_BH).all()
    assert np.abs(h_BH).max() <= 2 * history.BOUND_UNITS or np.abs(h_BH).max() <= history.BOUND_Z


def test_without_history_nothing_is_said():
    assert not history_features(empty(1), rows(WINDOW_MINUTES)[None]).any()
    assert empty(3).shape == (3, SUMS)


def test_a_card_that_hangs_teaches_nothing():
    hung = rows(WINDOW_MINUTES)
    hung[:, COLUMN_INDEX["samples_ok"]] = 0
    assert not enter(empty(1), hung[None]).any()


def test_short_histories_are_those_of_cards_that_came_lately():
    minute_M, rows_MC = FIRST + np.arange(900), rows(900)
    card = DeviceMinutes("d", "n", minute_M, rows_MC, Outcome())
    ends = minute_M[500:900:4]
    full = Track(minute_M, rows_MC).at(ends)
    made = short_histories(card, ends, full.copy(), np.random.default_rng(3))
    counts = made[:, 0]
    short = counts < 400
    assert 0.2 < short.mean() < 0.5
    np.testing.assert_array_equal(made[~short], full[~short])
    assert counts.min() >= 75 - history.AGE_MINUTES - 1
