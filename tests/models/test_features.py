"""Features: bounded and finite whatever comes in, and moving the way physics says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from contract.minute import COLUMN_INDEX, COLUMNS
from models.codehash import code_hash
from models.features import AGGREGATES, BOUND, aggregates, features
from models.series import FEATURES

C = len(COLUMNS)
ODD = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-30, 3.4e38, -3.4e38, 2.0**53]


def healthy(minutes: int = 60) -> np.ndarray:
    """A quiet card: every gauge constant, twelve samples a minute."""
    rows = np.full((minutes, C), np.nan, np.float32)
    rows[:, [COLUMN_INDEX[c] for c in ("samples", "samples_ok")]] = 12
    rows[:, [i for c, i in COLUMN_INDEX.items() if c.startswith("samples_") and "ok" not in c]] = 0
    values = {
        "temperature_celsius": 65,
        "power_watts": 200,
        "vrm_ripple_volts": 0.04,
        "fan_speed_rpm": 2000,
        "fan_vibration_g": 0.1,
        "ambient_celsius": 24,
    }
    for name, value in values.items():
        for statistic in ("mean", "min", "max"):
            rows[:, COLUMN_INDEX[f"{name}_{statistic}"]] = value
        rows[:, COLUMN_INDEX[f"{name}_std"]] = 0
        rows[:, COLUMN_INDEX[f"{name}_count"]] = 12
    return rows


def feature(x_BTF: np.ndarray, name: str) -> np.ndarray:
    return x_BTF[0, :, FEATURES.index(name)]


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 2), st.sampled_from([1, 2, 60]), st.just(C)),
        elements=st.one_of(st.sampled_from(ODD), st.floats(-1e6, 1e6, width=32)),
        fill=st.sampled_from(ODD),
    )
)
@settings(max_examples=60, deadline=None)
def test_always_finite_and_bounded(rows):
    x = features(rows)
    assert x.shape == (*rows.shape[:2], len(FEATURES))
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    assert np.abs(x).max() <= BOUND


@pytest.mark.parametrize("value", ODD)
def test_constant_windows(value):
    x = features(np.full((3, 60, C), value, np.float32))
    assert np.isfinite(x).all()


def test_an_empty_window_and_no_windows():
    assert not features(np.full((1, 60, C), np.nan, np.float32)).any()
    assert features(np.empty((0, 60, C), np.float32)).shape == (0, 60, len(FEATURES))


def test_pure_and_independent_of_the_batch():
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(size=(300, 60, C))).astype(np.float32) * 30
    before = rows.copy()
    whole = features(rows)
    np.testing.assert_array_equal(rows, before)
    np.testing.assert_allclose(whole[170], features(rows[170:171])[0], atol=1e-3)


def test_names_are_unique_and_match_the_axis():
    assert len(set(FEATURES)) == len(FEATURES)
    z = aggregates(features(healthy()[None]))
    assert z.shape == (1, len(AGGREGATES))


def test_missing_is_zero_with_zero_coverage():
    x = features(healthy()[None])
    assert not feature(x, "memory_temperature_celsius:level").any()
    assert not feature(x, "memory_temperature_celsius:coverage").any()
    assert (feature(x, "temperature_celsius:coverage") == 1).all()


def test_a_quiet_card_moves_nothing():
    x = features(healthy()[None])
    for i, name in enumerate(FEATURES):
        if name.endswith((":delta", ":slope", ":spread")):
            assert np.abs(x[0, :, i]).max() < 1e-3, name


def test_ripple_that_doubles_shows_as_the_same_delta_at_any_level():
    deltas = []
    for level in (0.01, 0.08):
        rows = healthy()
        for statistic in ("mean", "min", "max"):
            rows[:, COLUMN_INDEX[f"vrm_ripple_volts_{statistic}"]] = level
            rows[40:, COLUMN_INDEX[f"vrm_ripple_volts_{statistic}"]] = 2 * level
        deltas.append(feature(features(rows[None]), "vrm_ripple_volts:delta")[-1])
    assert deltas[0] == pytest.approx(deltas[1], rel=1e-3)
    assert deltas[0] > 1


def test_a_worse_cooler_raises_thermal_resistance_but_load_does_not():
    worse, loaded = healthy(), healthy()
    worse[30:, COLUMN_INDEX["temperature_celsius_mean"]] = 85
    loaded[30:, COLUMN_INDEX["power_watts_mean"]] = 300
    loaded[30:, COLUMN_INDEX["temperature_celsius_mean"]] = 24 + 41 * 1.5
    name = "thermal_resistance:delta"
    assert feature(features(worse[None]), name)[-1] > 1
    assert abs(feature(features(loaded[None]), name)[-1]) < 0.05


def test_counters_step_between_minutes_and_resets_are_not_errors():
    rows = healthy()
    first, last, increase, count = (
        COLUMN_INDEX[f"ecc_corrected_total_{s}"] for s in ("first", "last", "increase", "count")
    )
    rows[:, [first, last]] = 100
    rows[:, increase] = 0
    rows[:, count] = 12
    rows[30:, [first, last]] = 107
    rows[50:, [first, last]] = 0
    x = features(rows[None])
    steps = feature(x, "ecc_corrected_total:increase")
    assert steps[30] == pytest.approx(np.log1p(7), rel=1e-5)
    assert np.flatnonzero(steps).tolist() == [30]


def test_a_step_across_missing_minutes_counts_once():
    rows = healthy()
    first, last = (COLUMN_INDEX[f"ecc_corrected_total_{s}"] for s in ("first", "last"))
    rows[:, [first, last]] = 5
    rows[20:25] = np.nan
    rows[25:, [first, last]] = 9
    steps = feature(features(rows[None]), "ecc_corrected_total:increase")
    assert steps[25] == pytest.approx(np.log1p(4), rel=1e-5)
    assert np.flatnonzero(steps).tolist() == [25]


def test_a_late_start_is_not_lost_telemetry_but_a_hole_is():
    started, hole = healthy(), healthy()
    started[:30] = np.nan
    hole[30:40] = np.nan
    assert not feature(features(started[None]), "samples_missing_recent").any()
    assert feature(features(hole[None]), "samples_missing_recent")[45] > 0.5


def test_wrong_columns_are_refused():
    with pytest.raises(ValueError, match="expected"):
        features(np.zeros((1, 60, C + 1), np.float32))


def test_the_hash_ignores_layout_and_sees_code():
    plain = code_hash('"""Doc."""\nx = f("a", 1)\n')
    assert plain == code_hash("x = f(  # why\n    'a',\n    1,\n)\n")
    assert plain != code_hash('x = f("a", 2)\n')
