"""The budget's promises: never over a limit, never stuck, the same again after a restart."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.budget import Budget, BudgetGate, BudgetPolicy

MIN = 60_000
T0 = 1_767_225_600_000


def test_one_failure_on_a_two_card_site_may_move():
    # NVSentinel PR#1852: a breaker of per cent only blocks a small cluster.
    answer = Budget().ask("lab", "n1/a", T0, devices_known=2)
    assert answer.allowed
    assert answer.transitions == ()


def test_the_third_within_ten_minutes_is_held_and_opens_the_breaker():
    budget = Budget()
    assert budget.ask("lab", "a", T0, 16).allowed
    assert budget.ask("lab", "b", T0 + MIN, 16).allowed
    third = budget.ask("lab", "c", T0 + 2 * MIN, 16)
    assert not third.allowed
    assert third.reason == "window"
    assert [t.type for t in third.transitions] == ["breaker.opened"]
    assert third.transitions[0].data["limit"] == 2
    assert "nothing more is moved" in third.transitions[0].data["reason"]
    # Alerted once, and held also when the window alone would have room again.
    later = budget.ask("lab", "d", T0 + 14 * MIN, 16)
    assert (later.allowed, later.reason, later.transitions) == (False, "breaker", ())


def test_five_per_cent_of_a_large_site():
    budget = Budget()
    allowed = sum(budget.ask("lab", f"d{i}", T0 + i, 1_500).allowed for i in range(150))
    assert allowed == 75
    assert budget.is_open("lab")


def test_moves_that_never_end_meet_the_open_limit():
    budget = Budget()
    answers = [budget.ask("lab", f"d{i}", T0 + i * 20 * MIN, 20) for i in range(5)]
    assert [a.allowed for a in answers] == [True, True, True, True, False]
    assert answers[4].reason == "open"
    # Ended episodes make room, once the breaker has closed by calm.
    for i in range(3):
        budget.ended("lab", f"d{i}")
    after = budget.ask("lab", "d4", T0 + 111 * MIN, 20)
    assert [t.type for t in after.transitions] == ["breaker.closed"]
    assert after.allowed


def test_what_has_ended_does_not_count_as_waiting():
    budget = Budget(BudgetPolicy(window_devices=4, open_devices=2))
    budget.ask("lab", "a", T0, 4)
    budget.ask("lab", "b", T0, 4)
    budget.ended("lab", "a")
    budget.ended("lab", "b")
    assert budget.ask("lab", "c", T0 + 1, 4).allowed
    assert budget.ask("lab", "d", T0 + 2, 4).allowed


def test_sites_do_not_share():
    budget = Budget()
    for device in "abc":
        budget.ask("one", device, T0, 4)
    assert budget.is_open("one")
    assert budget.ask("two", "a", T0, 4).allowed


def test_asking_again_for_an_open_move_counts_once():
    budget = Budget()
    for i in range(10):
        assert budget.ask("lab", "a", T0 + i, 4).allowed
    assert budget.ask("lab", "b", T0 + 20, 4).allowed


def test_the_breaker_stays_open_in_a_storm_and_closes_when_a_few_are_left():
    budget = Budget()
    for minute in range(60):
        for i in range(10):
            budget.ask("lab", f"d{i}", T0 + minute * MIN, 16)
    assert budget.is_open("lab")
    assert sum(budget.ask("lab", f"d{i}", T0 + 60 * MIN, 16).allowed for i in range(10)) == 2
    # One card goes on asking every minute: that is no storm, it must not hold the breaker open.
    transitions = []
    for minute in range(61, 120):
        answer = budget.ask("lab", "d9", T0 + minute * MIN, 16)
        transitions += [t.type for t in answer.transitions]
        if answer.allowed:
            break
    assert transitions == ["breaker.closed"]
    assert answer.allowed


def test_closed_by_a_person():
    budget = Budget()
    for device in "abc":
        budget.ask("lab", device, T0, 4)
    (closed,) = budget.close("lab", T0 + MIN, "Mei")
    assert closed.type == "breaker.closed"
    assert closed.data["reason"] == "closed by Mei"
    assert closed.data["open_seconds"] == 60
    assert budget.close("lab", T0 + MIN, "Mei") == ()
    # The window still counts: a person ends the alarm, not the budget.
    assert not budget.ask("lab", "c", T0 + 2 * MIN, 4).allowed


def test_late_asks_count_at_the_newest_time():
    budget = Budget()
    budget.ask("lab", "a", T0 + 30 * MIN, 4)
    budget.ask("lab", "b", T0 + 30 * MIN, 4)
    assert not budget.ask("lab", "c", T0, 4).allowed


def test_an_end_that_is_never_heard_of_expires():
    budget = Budget(BudgetPolicy(open_expires_ms=60 * MIN))
    budget.ask("lab", "a", T0, 2)
    budget.ask("lab", "b", T0, 2)
    assert budget.ask("lab", "c", T0 + 61 * MIN, 2).allowed


def test_gate_collects_what_the_breaker_did():
    gate = BudgetGate(Budget(), lambda site: 8)
    assert gate.allows("lab", "n1", "a", T0) is None
    assert gate.allows("lab", "n1", None, T0) is None
    assert gate.allows("lab", "n2", "a", T0) == "window"
    gate.ended("lab", "n1", "a", T0)
    gate.advance(["lab"], T0 + 40 * MIN)
    assert [t.type for t in gate.take()] == ["breaker.opened", "breaker.closed"]
    assert gate.take() == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("window_ms", 0),
        ("open_devices", -1),
        ("open_ratio", 1.5),
        ("calm_ms", -5),
    ],
)
def test_senseless_policies_name_the_number(key, value):
    with pytest.raises(ValueError, match=key):
        BudgetPolicy(**{key: value})


def test_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version"):
        Budget().load("lab", {"v": 99})


asks = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "ended"]),
        st.integers(0, 30).map(lambda i: f"d{i}"),
        st.integers(-5 * MIN, 8 * MIN),  # step of event time; some input is late
        st.sampled_from([2, 16, 60, 100]),
    ),
    max_size=80,
)


def run(steps, budget, *, restart_every=0):
    """Answers and allowed moves as (site time, device, limit then) for a list of steps."""
    at, clock, answers, moves, open_now = T0, T0, [], [], set()
    for number, (kind, device, step, known) in enumerate(steps):
        at = max(at + step, T0)
        clock = max(clock, at) if kind == "ask" else clock
        if kind == "ended":
            budget.ended("lab", device)
            open_now.discard(device)
        else:
            answer = budget.ask("lab", device, at, known)
            answers.append(answer)
            if answer.allowed and device not in open_now:
                moves.append((clock, budget.policy.window_limit(known)))
                open_now.add(device)
                assert len(open_now) <= budget.policy.open_limit(known)
        if restart_every and number % restart_every == 0:
            state = json.loads(json.dumps(budget.dump("lab")))
            budget = Budget(budget.policy)
            budget.load("lab", state)
    return answers, moves


@settings(max_examples=200, deadline=None)
@given(asks)
def test_no_window_ever_holds_more_than_allowed(steps):
    policy = BudgetPolicy()
    _, moves = run(steps, Budget(policy))
    for i, (at, limit) in enumerate(moves):
        in_window = sum(at - policy.window_ms < earlier for earlier, _ in moves[: i + 1])
        assert in_window <= limit


@settings(max_examples=100, deadline=None)
@given(asks, st.integers(1, 7))
def test_same_input_same_answers_whatever_restarts(steps, restart_every):
    straight, _ = run(steps, Budget())
    restarted, _ = run(steps, Budget(), restart_every=restart_every)
    assert straight == restarted


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2_000), st.integers(2, 400))
def test_state_is_bounded_in_a_storm(storm, known):
    budget = Budget()
    for i in range(storm):
        budget.ask("lab", f"d{i}", T0 + i, known)
    state = budget.dump("lab")
    assert len(state["asked"]) <= budget.policy.window_limit(known) + 1
    assert len(state["moved"]) <= budget.policy.window_limit(known)
    assert len(state["open"]) <= budget.policy.open_limit(known)


@settings(max_examples=50, deadline=None)
@given(asks)
def test_the_breaker_always_closes_after_calm(steps):
    budget = Budget()
    run(steps, budget)
    if budget.is_open("lab"):
        newest = budget.dump("lab")["now_ms"]
        types = [t.type for t in budget.advance("lab", newest + budget.policy.calm_ms)]
        assert types == ["breaker.closed"]
    assert not budget.is_open("lab")
