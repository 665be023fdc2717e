"""The cadence: no drift, no overlap, skipped ticks counted; the simulated clock."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.clock import ScaledClock, WallClock
from agents.rate import TemperatureRate
from agents.schedule import Schedule

DURATIONS = st.lists(st.floats(0, 23), max_size=40)


@given(start=st.floats(0, 1e6), durations=DURATIONS)
def test_ticks_lie_on_the_grid_without_overlap(start: float, durations: list[float]) -> None:
    interval = 5.0
    schedule = Schedule.aligned(start, interval)
    now, ticks = start, []
    for duration in durations:
        due = schedule.next_due(now)
        begun = max(now, due)
        ticks.append(schedule.tick)
        assert due == schedule.start + schedule.tick * interval
        assert 0 <= begun - due <= interval / 2 + 1e-6
        now = begun + duration
    assert ticks == sorted(set(ticks))
    assert not ticks or len(ticks) + schedule.skipped == ticks[-1] + 1


def test_short_reads_never_drift() -> None:
    schedule, now = Schedule(100.0, 5.0), 100.0
    for tick in range(100_000):
        due = schedule.next_due(now)
        assert due == 100.0 + 5.0 * tick
        now = due + 0.123
    assert schedule.skipped == 0


def test_a_slow_read_skips_and_counts() -> None:
    schedule = Schedule(0.0, 5.0)
    assert schedule.next_due(0.0) == 0
    assert schedule.next_due(7.0) == 5  # two seconds late: it still runs
    assert schedule.next_due(18.0) == 20  # 10 and 15 have passed
    assert schedule.skipped == 2


class FakeTime:
    """A wall and a monotonic clock that only move when told; waiting moves them."""

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self.wall_seconds, self.monotonic_seconds = wall, 50.0

    def wall(self) -> float:
        return self.wall_seconds

    def monotonic(self) -> float:
        return self.monotonic_seconds

    def advance(self, seconds: float) -> None:
        self.wall_seconds += seconds
        self.monotonic_seconds += seconds


class FakeStop(threading.Event):
    """An event whose wait passes fake time, a little more than asked for."""

    def __init__(self, time: FakeTime, overshoot: float) -> None:
        super().__init__()
        self._time, self._overshoot = time, overshoot

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._time.advance(timeout + max(1e-6, self._overshoot))
        return self.is_set()


@given(
    speed=st.sampled_from([1.0, 10.0, 60.0, 600.0]),
    late=st.floats(0, 500),
    overshoot=st.floats(0, 0.003),
)
def test_a_scaled_clock_samples_on_exact_multiples(
    speed: float, late: float, overshoot: float
) -> None:
    time = FakeTime()
    anchor = time.wall() - late
    clock = ScaledClock(speed, 1.7e9, anchor, 5.0, time.wall, time.monotonic)
    stop = FakeStop(time, overshoot)
    schedule = Schedule.aligned(clock.monotonic(), 5.0)
    for _ in range(20):
        due = schedule.next_due(clock.monotonic())
        assert clock.sleep_until(due, stop)
        assert clock.instant().ts == 1.7e9 + due
        assert clock.instant().monotonic == due
    assert schedule.skipped == 0


def test_two_agents_that_start_apart_share_one_simulated_clock() -> None:
    time = FakeTime()
    anchor = time.wall()
    first = ScaledClock(60.0, 1.7e9, anchor, 5.0, time.wall, time.monotonic)
    time.advance(3.0)
    time.monotonic_seconds += 1234.5  # another process's monotonic clock has another zero
    second = ScaledClock(60.0, 1.7e9, anchor, 5.0, time.wall, time.monotonic)
    time.monotonic_seconds -= 1234.5
    assert first.instant().ts == 1.7e9 + 180
    time.monotonic_seconds += 1234.5
    assert second.instant().ts == 1.7e9 + 180


def test_a_step_of_the_wall_clock_moves_time_stamps_but_not_intervals() -> None:
    time = FakeTime()
    clock = WallClock(time.wall, time.monotonic)
    before = clock.instant()
    time.advance(5.0)
    time.wall_seconds -= 3600
    after = clock.instant()
    assert after.monotonic - before.monotonic == 5.0
    assert after.ts - before.ts == -3595.0


def test_waiting_ends_when_told_to_stop() -> None:
    time = FakeTime()
    stop = threading.Event()
    stop.set()
    assert not WallClock(time.wall, time.monotonic).sleep_until(1e9, stop)


def test_rate_is_none_at_first_after_a_gap_and_without_a_temperature() -> None:
    rate = TemperatureRate(5.0)
    samples = [(60.0, 0.0), (61.0, 5.0), (None, 10.0), (63.0, 15.0), (70.0, 75.1), (70.0, 75.1)]
    assert [rate.update(c, t) for c, t in samples] == [None, 0.2, None, 0.2, None, None]


@given(
    slope=st.floats(-1, 1),
    steps=st.lists(st.floats(0.5, 12.5), min_size=1, max_size=50),
    start=st.floats(0, 1e6),
)
def test_rate_recovers_a_slope_at_any_spacing(
    slope: float, steps: list[float], start: float
) -> None:
    rate, elapsed = TemperatureRate(5.0), 0.0
    assert rate.update(40.0, start) is None
    for step in steps:
        elapsed += step
        got = rate.update(40.0 + slope * elapsed, start + elapsed)
        assert got == pytest.approx(slope, abs=1e-6)
