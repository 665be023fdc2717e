"""Counting: every rule of contracts section 5 by an example, and against a literal oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.counting import Card, Count, card_of, confidence95, count, episode_starts, totals
from models.windows import DeviceMinutes, Outcome

MIN = 60_000
F = 2000 * MIN


def card(failure=F, judged=True, first=0, last=F):
    return Card("d", first, last, failure, "fan_bearing", judged)


def starts(*minutes):
    return [s // MIN for s in episode_starts([m * MIN for m in minutes])]


def test_alarms_close_together_are_one_episode():
    assert starts(10, 11, 12, 71) == [10]


def test_sixty_minutes_without_alarm_close_an_episode():
    assert starts(10, 69) == [10]
    assert starts(10, 70) == [10, 70]


def test_an_episode_lasts_at_most_240_minutes():
    every = range(500)
    assert starts(*every) == [0, 240, 480]


@pytest.mark.parametrize(
    ("before_failure", "expected"),
    [
        (241, Count(false=1)),
        (240, Count(lead_ms=240 * MIN)),
        (60, Count(lead_ms=60 * MIN)),
        (5, Count(lead_ms=5 * MIN)),
        (4, Count(late=1)),
        (1, Count(late=1)),
        (0, Count()),
        (-10, Count()),
    ],
)
def test_where_an_episode_starts(before_failure, expected):
    assert count(card(), [F - before_failure * MIN]) == expected


def test_the_lead_is_that_of_the_earliest_true_episode():
    assert count(card(), [F - 200 * MIN, F - 100 * MIN]).lead_ms == 200 * MIN


def test_a_false_episode_that_reaches_into_the_true_period_does_not_catch():
    alarms = [F - m * MIN for m in range(260, 100, -1)]
    assert count(card(), alarms) == Count(false=1)
    assert count(card(), [F - m * MIN for m in range(260, 10, -1)]) == Count(
        false=1, lead_ms=20 * MIN
    )


def test_a_caught_failure_may_have_late_and_false_episodes_too():
    alarms = [F - 1000 * MIN, F - 100 * MIN, F - 2 * MIN]
    assert count(card(), alarms) == Count(false=1, late=1, lead_ms=100 * MIN)


def test_a_healthy_card_has_false_episodes_only():
    assert count(card(None), [0, 100 * MIN, 900 * MIN]) == Count(false=3)


def test_an_unjudged_failure_is_neither_caught_nor_late():
    assert count(card(judged=False), [F - 30 * MIN, F - 2 * MIN]) == Count()
    assert count(card(judged=False), [F - 300 * MIN]) == Count(false=1)


def minutes(first, last, failed=None, moved=None):
    minute = np.arange(first, last, dtype=np.int64)
    return DeviceMinutes(
        "d", "n", minute, np.ones((len(minute), 1), np.float32), Outcome(failed, "k", moved)
    )


def test_judged_needs_sixty_minute_rows_before_the_last_five_minutes():
    assert card_of(minutes(0, 70, failed=70 * MIN)).judged
    assert card_of(minutes(0, 65, failed=65 * MIN)).judged
    assert not card_of(minutes(0, 64, failed=64 * MIN)).judged
    assert card_of(minutes(0, 64, failed=500 * MIN)).judged


def test_device_days_run_from_an_hour_after_the_first_row():
    assert card_of(minutes(0, 1500)).device_days == 1
    assert card_of(minutes(0, 60)).device_days == 0
    assert card_of(minutes(100, 3000, failed=(100 + 60 + 1440 + 240) * MIN)).device_days == 1
    assert card_of(minutes(0, 100, failed=120 * MIN)).device_days == 0


def test_a_move_before_the_failure_censors_it():
    moved = card_of(minutes(0, 300, failed=400 * MIN, moved=300 * MIN))
    assert moved.failure_ms is None
    assert card_of(minutes(0, 300, failed=300 * MIN, moved=400 * MIN)).failure_ms == 300 * MIN


def oracle(alarm_minutes, failure_minute):
    """The rules, minute by minute and word by word."""
    alarm_minutes = set(alarm_minutes)
    open_since, newest = None, 0
    begun = []
    for now in range(3001):
        if failure_minute is not None and now >= failure_minute:
            break
        if open_since is not None and (now - newest >= 60 or now - open_since >= 240):
            open_since = None
        if now in alarm_minutes:
            if open_since is None:
                open_since = now
                begun.append(now)
            newest = now
    if failure_minute is None:
        return len(begun), 0, None
    true = [b for b in begun if failure_minute - 240 <= b <= failure_minute - 5]
    late = [b for b in begun if failure_minute - 5 < b < failure_minute]
    lead = failure_minute - min(true) if true else None
    return len(begun) - len(true) - len(late), len(late), lead


@given(
    st.lists(st.integers(0, 3000), max_size=60, unique=True),
    st.lists(st.tuples(st.integers(0, 2900), st.integers(1, 400)), max_size=4),
    st.one_of(st.none(), st.integers(1, 3000)),
)
def test_against_the_oracle(single, runs, failure_minute):
    alarms = set(single)
    for start, length in runs:
        alarms.update(range(start, min(start + length, 3001)))
    failure = None if failure_minute is None else failure_minute * MIN
    counted = count(card(failure), [m * MIN for m in sorted(alarms)])
    false, late, lead = oracle(alarms, failure_minute)
    assert (counted.false, counted.late) == (false, late)
    assert counted.lead_ms == (None if lead is None else lead * MIN)


def test_totals_and_intervals():
    cards = [card(), card(), card(judged=False), card(None)]
    counts = [Count(lead_ms=MIN, false=1), Count(late=1), Count(), Count(false=2)]
    sums = totals(cards, counts)
    assert (sums.failures, sums.caught, sums.false, sums.late) == (2, 1, 3, 1)
    assert sums.event_recall == 0.5
    assert sums.precision == 0.25
    assert sums.false_alarms_per_device_day == pytest.approx(3 / sums.device_days)
    interval = confidence95(cards, counts)
    assert interval == confidence95(cards, counts)
    assert interval["event_recall"][0] <= 0.5 <= interval["event_recall"][1]
    assert totals([], []).event_recall == 0
    assert confidence95([], [])["precision"] == [0, 0]
