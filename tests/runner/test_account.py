"""Goodput and throughput, counted from reports."""

from hypothesis import given
from hypothesis import strategies as st

from runner.account import MAX_SPANS, Account
from runner.progress import Point


def point(at_ms: int, step: int, generation: int = 1) -> Point:
    return Point(at_ms, step, 1.0, "a", None, generation)


def test_steps_that_are_done_again_do_not_count() -> None:
    first = [point(1000 * i, i) for i in range(1, 11)]  # 9 s of reports
    account = Account().add(first)
    assert account.kept_ms == 9000
    assert account.steps_per_second(1) == 1.0
    # Killed at step 10, its last checkpoint was at 5: steps 6 to 10 are done again.
    account = account.add([point(20_000, 6, 2), point(24_000, 10, 2)])
    assert account.kept_ms == 4000 + 4000
    assert account.steps_per_second(2) == 1.0
    assert account.steps_per_second(3) is None
    assert account.goodput(0, 32_000) == 0.25
    assert account.goodput(None, 32_000) is None


def test_a_trainer_that_goes_back_by_itself_is_seen() -> None:
    account = Account().add([point(0, 0), point(10_000, 10), point(12_000, 6), point(16_000, 10)])
    assert account.kept_ms == 5000 + 4000


def test_a_start_from_nothing_keeps_nothing() -> None:
    assert Account().add([point(0, 1), point(9000, 9), point(9500, 1, 2)]).kept_ms == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 40), st.booleans()), min_size=1, max_size=80
    ),
    st.integers(1, 80),
)
def test_kept_time_is_bounded_by_the_clock_and_split_anywhere(
    moves: list[tuple[int, int, bool]], cut: int
) -> None:
    at_ms, generation, points = 0, 1, []
    for later_ms, step, new_start in moves:
        at_ms, generation = at_ms + later_ms, generation + new_start
        points.append(point(at_ms, step, generation))
    account = Account().add(points)
    assert 0 <= account.kept_ms <= at_ms - points[0].at_ms
    assert len(account.spans) <= MAX_SPANS
    assert Account().add(points[:cut]).add(points[cut:]) == account
    goodput = account.goodput(points[0].at_ms, at_ms + 1)
    assert goodput is not None
    assert 0 <= goodput <= 1
