"""Walking: many thresholds at once give what the worker's hysteresis gives one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.counting import Card
from models.walk import (
    NEVER,
    FastWalk,
    OperatingPoint,
    Trace,
    operating_points,
    threshold_for,
    walk,
)
from stream.policy import Policy

MIN = 60_000
scores = st.lists(st.integers(0, 10).map(lambda v: v / 10), max_size=80).map(np.array)


@given(
    scores,
    st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0, NEVER]),
    st.sampled_from(
        [
            Policy(),
            Policy(raise_scorings=1, of_scorings=1),
            Policy(raise_scorings=3, of_scorings=5, clear_ratio=0.3),
        ]
    ),
)
def test_fast_walk_is_the_workers_hysteresis(score, threshold, policy):
    score = score.astype(np.float64)
    np.testing.assert_array_equal(
        FastWalk(score, policy).alarms(threshold), walk(score, threshold, policy)
    )


@given(scores, st.integers(1, 79))
def test_nothing_later_changes_an_alarm(score, until):
    score = score.astype(np.float64)
    whole = walk(score, 0.5)
    np.testing.assert_array_equal(walk(score[:until], 0.5), whole[:until])


def test_two_of_three_scorings_raise_an_alarm():
    assert walk(np.array([0.9, 0.1, 0.1, 0.9]), 0.5).tolist() == [False] * 4
    assert walk(np.array([0.9, 0.1, 0.9]), 0.5).tolist() == [False, False, True]


def trace(score, failure=None):
    at = np.arange(1, len(score) + 1, dtype=np.int64) * MIN
    card = Card("d", 0, len(score) * MIN, failure, "k", True)
    return Trace(card, at, np.asarray(score, np.float64))


def test_the_threshold_lies_just_above_what_healthy_cards_reached():
    healthy = trace(np.r_[np.full(100, 0.1), np.full(5, 0.4), np.full(1500, 0.1)])
    sick = trace(np.r_[np.full(1000, 0.2), np.full(100, 0.9)], failure=1101 * MIN)
    points = operating_points([healthy, sick])
    threshold = threshold_for(points, 0.003)
    assert 0.4 < threshold < 0.401
    chosen = next(p for p in points if p.threshold == threshold)
    assert chosen == OperatingPoint(0.0, 1.0, threshold)
    assert threshold_for(points, 1000) < 0.4


def test_no_threshold_keeps_an_impossible_budget():
    points = [OperatingPoint(0.5, 1.0, 0.9), OperatingPoint(0.0, 0.2, 0.7)]
    assert threshold_for(points, 0.1) == NEVER
    assert threshold_for([], 0.1) == NEVER


def test_no_scores_at_all():
    assert operating_points([trace([])])[0].event_recall == 0
