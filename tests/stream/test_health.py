"""The health score: the worst part, monotone in each, and no jumpier than its parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream import health
from stream.policy import HEALTH_UNHEALTHY, RiskHysteresis

unit = st.floats(0, 1)
celsius = st.floats(-20, 150)


def score(
    risk: float, degrees: float, completeness: float, quarantines: int, broken: bool
) -> float:
    return health.combine(
        {
            "risk": health.risk_part(risk, 0.4),
            "temperature": health.temperature_part(degrees, 97.0),
            "telemetry": health.telemetry_part(completeness),
            "history": health.history_part(quarantines),
            "signs": health.signs_part(broken),
        }
    )


@given(unit, unit, celsius, celsius, unit, unit, st.integers(0, 9), st.integers(0, 9))
def test_a_worse_part_never_raises_the_score(
    r1: float, r2: float, t1: float, t2: float, c1: float, c2: float, q1: int, q2: int
) -> None:
    better = score(min(r1, r2), min(t1, t2), max(c1, c2), min(q1, q2), False)
    for worse in (
        score(max(r1, r2), min(t1, t2), max(c1, c2), min(q1, q2), False),
        score(min(r1, r2), max(t1, t2), max(c1, c2), min(q1, q2), False),
        score(min(r1, r2), min(t1, t2), min(c1, c2), min(q1, q2), False),
        score(min(r1, r2), min(t1, t2), max(c1, c2), max(q1, q2), False),
        score(min(r1, r2), min(t1, t2), max(c1, c2), min(q1, q2), True),
    ):
        assert 0.0 <= worse <= better <= 100.0


@given(celsius, st.floats(-1, 1), st.floats(0, 0.35), st.floats(-0.01, 0.01))
def test_noise_moves_it_no_more_than_its_steepest_part(
    degrees: float, noise: float, risk: float, risk_noise: float
) -> None:
    before = score(risk, degrees, 1.0, 0, False)
    after = score(max(0.0, risk + risk_noise), degrees + noise, 1.0, 0, False)
    assert abs(after - before) <= 6.0 * abs(noise) + 100.0 * abs(risk_noise) + 1e-6


@given(st.lists(st.floats(0, 0.3), min_size=3, max_size=20), st.floats(0, 1))
def test_one_odd_scoring_does_not_make_a_card_unhealthy(calm: list[float], spike: float) -> None:
    hysteresis = RiskHysteresis()
    for risk in [*calm, spike]:
        hysteresis.update(risk, 0.4)
    assert health.risk_part(hysteresis.effective, 0.4) >= HEALTH_UNHEALTHY


def test_it_is_explained_by_its_worst_part() -> None:
    assert health.because({"risk": 100.0, "temperature": 70.0, "telemetry": 90.0}) == "temperature"
    assert health.because({"risk": 100.0}) is None
    assert health.temperature_part(97.0, 97.0) == pytest.approx(60.0)
    assert health.temperature_part(None, 97.0) == 100.0
