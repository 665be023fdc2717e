"""Arithmetic behind the NVIDIA sources: sentinels, wrapping counters, proxies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.counters import WrappingCounter
from agents.plausible import impossible, is_sentinel
from agents.sources.nvml_proxies import FanJitter, ripple_volts
from contract.signals import SIGNALS


@pytest.mark.parametrize(
    "number",
    [
        0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFF0, 0x7FFFFFF3, 9223372036854775794,
        9223372036854775794.0, 140737488355328.0, 140737488355330.0,
    ],
)  # fmt: skip
def test_sentinels(number: float) -> None:
    assert is_sentinel(number)
    assert impossible("ecc_corrected_total", number) is not None


@given(st.sampled_from(SIGNALS), st.floats(0, 1))
def test_plausible_values_pass(signal: object, share: float) -> None:
    name, low, high = signal.name, signal.low, min(signal.high, 1e9)  # type: ignore[attr-defined]
    assert impossible(name, low + share * (high - low)) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, None), (float("nan"), None), (float("inf"), "sentinel"), ("61 C", "not a number"),
     (True, "not a number"), (255, "out of range"), (-21, "out of range")],
)  # fmt: skip
def test_why_a_temperature_is_impossible(value: object, reason: str | None) -> None:
    assert impossible("temperature_celsius", value) == reason


@given(st.integers(0, 2**40), st.lists(st.integers(0, 2**30 - 1), max_size=50))
def test_a_wrapping_counter_follows_the_true_count(start: int, steps: list[int]) -> None:
    counter, true = WrappingCounter(), start
    first = counter.update(true % 2**32)
    for step in steps:
        true += step
        assert counter.update(true % 2**32) - first == true - start


@given(st.integers(2**20, 2**31), st.integers(0, 2**19))
def test_a_reset_falls_and_is_never_a_giant_step(before: int, after: int) -> None:
    counter = WrappingCounter()
    counter.update(before)
    assert counter.update(after) == after


@given(st.lists(st.floats(1, 1500), min_size=8, max_size=200))
def test_ripple_is_in_the_plausible_range(watts: list[float]) -> None:
    volts = ripple_volts(watts)
    assert volts is not None
    assert 0 <= volts <= 10
    assert ripple_volts([w * 2 for w in watts]) == pytest.approx(2 * volts)


def test_a_step_of_load_is_no_ripple() -> None:
    assert ripple_volts([100.0] * 20 + [300.0] * 20) == 0
    assert ripple_volts([100.0] * 7) is None


def test_jitter_needs_one_duty_and_a_turning_fan() -> None:
    fan = FanJitter()
    steady = [fan.update(2000.0, 0.5) for _ in range(10)]
    assert steady == [None] * 7 + [0.0] * 3  # two to settle, six to judge
    assert fan.update(2300.0, 0.6) is None  # another duty: begun anew
    assert fan.update(0.0, 0.6) is None
    assert fan.update(None, 0.6) is None


def test_a_rougher_bearing_has_a_larger_proxy_and_a_drift_has_little() -> None:
    def last(rpms: list[float]) -> float:
        fan = FanJitter()
        value = [fan.update(rpm, 0.5) for rpm in rpms][-1]
        assert value is not None
        return value

    rough = last([2000.0 + 50 * (i % 2) for i in range(14)])
    smooth = last([2000.0 + 5 * (i % 2) for i in range(14)])
    drift = last([2000.0 + 2 * i for i in range(14)])
    assert rough > 5 * smooth > 0
    assert drift < smooth
