"""The simulation against formulas, where there are formulas."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from economics.closed_forms import (
    card_availability,
    daly_seconds,
    goodput,
    job_mtbf_seconds,
    young_seconds,
)
from economics.compare import best_interval, best_threshold, compare
from economics.fleet import Fleet
from economics.simulate import mean_repair_seconds, replicate, simulate

SEEDS = range(12)
FRAIL = Fleet(
    cards=200, world=64, days=365, failures_per_device_month=0.2, repair_days_median=0.3,
    repair_days_p90=1.0, checkpoint_interval_seconds=1200,
)  # fmt: skip


def mean(values: list[float]) -> float:
    return float(np.mean(values))


@pytest.mark.parametrize("recall", [0.0, 0.5, 0.9])
def test_goodput_is_the_formulas_where_a_spare_is_at_hand(recall: float) -> None:
    fleet = replace(FRAIL, recall=recall, false_alarms_per_device_day=0.01)
    years = replicate(fleet, SEEDS)
    assert max(y.waiting_seconds for y in years) == 0
    assert mean([y.goodput for y in years]) == pytest.approx(goodput(fleet), abs=5e-4)


def test_cards_in_service_are_the_renewal_formulas() -> None:
    fleet = replace(FRAIL, false_alarms_per_device_day=0.02)
    expected = card_availability(fleet, mean_repair_seconds(fleet))
    years = replicate(fleet, SEEDS)
    assert mean([y.card_availability for y in years]) == pytest.approx(expected, abs=2e-3)


def test_failures_come_at_the_rate_asked_for() -> None:
    fleet = replace(FRAIL, bad_share=0.3, bad_factor=5, failures_per_device_month=0.02)
    expected = fleet.cards * fleet.failures_per_card_second * fleet.days * 86_400
    years = replicate(fleet, range(30))
    assert mean([y.failures for y in years]) == pytest.approx(expected, rel=0.05)


def test_the_best_interval_is_youngs_and_dalys_for_rare_failures() -> None:
    fleet = Fleet(cards=128, world=128, failures_per_device_month=0.05)
    best, mtbf = best_interval(fleet), job_mtbf_seconds(fleet)
    assert best["seconds"] == pytest.approx(young_seconds(20, mtbf), rel=0.03)
    assert best["seconds"] == pytest.approx(daly_seconds(20, mtbf), rel=0.03)
    assert best["goodput"] >= goodput(fleet)


def test_dalys_estimate_where_failures_are_as_frequent_as_checkpoints() -> None:
    assert daly_seconds(100, 50) == 50
    # Daly's figure for δ = 5 min, M = 24 h: within a minute of Young's less δ.
    assert daly_seconds(300, 86_400) == pytest.approx(young_seconds(300, 86_400) - 200, abs=60)


@settings(max_examples=25, deadline=None)
@given(
    recall=st.floats(0, 1),
    alarms=st.floats(0, 0.5),
    rate=st.floats(0, 2),
    world=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_whatever_the_numbers_shares_are_shares(
    recall: float, alarms: float, rate: float, world: int, seed: int
) -> None:
    fleet = Fleet(
        cards=12, world=world, days=60, recall=recall, false_alarms_per_device_day=alarms,
        failures_per_device_month=rate,
    )  # fmt: skip
    year = simulate(fleet, seed)
    assert 0 <= year.goodput <= 1
    assert 0 <= year.card_availability <= 1
    assert 0 <= year.waiting_seconds <= 60 * 86_400
    assert year.foreseen <= year.failures
    assert year == simulate(fleet, seed)


def test_without_spares_the_job_waits_for_repairs() -> None:
    tight = Fleet(cards=8, world=8, failures_per_device_month=0.5)
    loose = replace(tight, cards=16)
    assert mean([y.goodput for y in replicate(tight, SEEDS)]) < mean(
        [y.goodput for y in replicate(loose, SEEDS)]
    )
    assert all(y.waiting_seconds > 0 for y in replicate(tight, SEEDS))


def test_warnings_pay_and_too_many_false_ones_do_not() -> None:
    fleet = replace(FRAIL, cards=70, recall=0.8)
    answer = compare(fleet, replications=6)
    assert answer["saved_card_hours"] > 0
    crying = replace(fleet, false_alarms_per_device_day=1.0)
    assert compare(crying, replications=6)["saved_card_hours"] < 0


def test_the_threshold_that_pays_best_is_neither_blind_nor_crying() -> None:
    curve = [
        {"threshold": 0.99, "event_recall": 0.0, "false_alarms_per_device_day": 0.0},
        {"threshold": 0.8, "event_recall": 0.7, "false_alarms_per_device_day": 0.001},
        {"threshold": 0.1, "event_recall": 0.75, "false_alarms_per_device_day": 3.0},
    ]
    assert best_threshold(FRAIL, curve, range(4))["threshold"] == 0.8


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cards": 4, "world": 8}, "world = 8: the fleet has 4 cards"),
        ({"recall": 1.5}, "recall = 1.5: a share"),
        ({"days": 0}, "days = 0: more than 0"),
        ({"move_seconds": -1}, "move_seconds = -1: 0 or more"),
        ({"colour": 3}, "colour: no such number"),
        ({"cards": 1.5}, "cards = 1.5: a whole number"),
        ({"recall": "high"}, "recall = 'high': a number"),
        ({"repair_days_p90": 0.1}, "not under the median"),
        ({"days": float("nan")}, "days = nan"),
    ],
)
def test_wrong_numbers_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Fleet.of(values)
