"""Bursts: known tones, scaling, and fans with real damage."""

import math
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.burst import (
    STANDARD_GRAVITY,
    Floats,
    dominant_hertz,
    peak_to_peak,
    spectrum,
    strength,
    vibration,
)

FANS = Path(__file__).parents[3] / "shared/data/cooling_fan"

tones = st.tuples(
    st.floats(1e-3, 100),  # amplitude
    st.floats(0.05, 0.42),  # cycles a sample
    st.floats(0, 2 * math.pi),
    st.sampled_from([256, 500, 1024, 1023]),
)


def tone(amplitude: float, cycles: float, phase: float, n: int) -> Floats:
    return amplitude * np.sin(2 * np.pi * cycles * np.arange(n) + phase)


@given(tones, st.floats(10, 20_000), st.floats(-20, 20))
def test_a_tone_gives_its_strength_and_its_line_whatever_it_stands_on(
    spec: tuple[float, float, float, int], rate: float, gravity: float
) -> None:
    amplitude, cycles, _, n = spec
    samples_T = tone(*spec) + gravity
    hertz_F, amplitude_F = spectrum(samples_T, rate)
    assert strength(amplitude_F) == pytest.approx(amplitude / math.sqrt(2), rel=0.01, abs=1e-9)
    line = dominant_hertz(hertz_F, amplitude_F)
    assert line is not None
    assert abs(line - cycles * rate) <= 0.2 * rate / n


@given(tones)
def test_a_tone_of_many_cycles_is_two_amplitudes_high(
    spec: tuple[float, float, float, int],
) -> None:
    amplitude, cycles, _, _ = spec
    height = peak_to_peak(tone(*spec) + 12.0)
    assert height is not None
    assert height <= 2 * amplitude * (1 + 1e-9) + 1e-9
    # The samples may miss the crest by half a step of phase.
    assert height >= 2 * amplitude * math.cos(math.pi * cycles) - 1e-9


@given(tones, st.floats(1e-3, 1e3))
def test_scaling_the_samples_scales_strength_and_height_and_leaves_the_line(
    spec: tuple[float, float, float, int], factor: float
) -> None:
    samples_TX = tone(*spec)[:, None]
    one, many = vibration(samples_TX, 1000.0), vibration(samples_TX * factor, 1000.0)
    assert one is not None
    assert many is not None
    assert many.g == pytest.approx(one.g * factor, rel=1e-9)
    assert many.hertz == pytest.approx(one.hertz, rel=1e-6)
    low, high = peak_to_peak(samples_TX[:, 0]), peak_to_peak(samples_TX[:, 0] * factor)
    assert high == pytest.approx((low or 0) * factor, rel=1e-9)


@given(st.permutations([0, 1, 2]), tones)
def test_axes_add_up_whichever_way_the_sensor_is_mounted(
    order: list[int], spec: tuple[float, float, float, int]
) -> None:
    amplitude, cycles, phase, n = spec
    samples_TX = np.stack(
        [tone(amplitude, cycles, phase, n), tone(2 * amplitude, cycles, 1.0, n), np.zeros(n)],
        axis=1,
    )
    samples_TX[:, 2] += STANDARD_GRAVITY
    found = vibration(samples_TX[:, order], 800.0)
    assert found is not None
    expected = math.sqrt(5) * amplitude / math.sqrt(2) / STANDARD_GRAVITY
    assert found.g == pytest.approx(expected, rel=0.01)
    assert found.hertz == pytest.approx(cycles * 800.0, abs=0.2 * 800.0 / n)


def test_noise_does_not_move_the_line_and_adds_its_own_strength() -> None:
    noise = np.random.default_rng(7).normal(0, 0.5, 4096)
    samples_T = tone(1.0, 0.11, 0.3, 4096) + noise
    hertz_F, amplitude_F = spectrum(samples_T, 3200.0)
    assert dominant_hertz(hertz_F, amplitude_F) == pytest.approx(352.0, abs=0.5)
    assert strength(amplitude_F) == pytest.approx(math.sqrt(0.5 + 0.25), rel=0.05)


@pytest.mark.parametrize("constant", [0.0, 9.81])
def test_a_sensor_that_does_not_move_has_no_line(constant: float) -> None:
    found = vibration(np.full((1024, 3), constant), 800.0)
    assert found is not None
    assert found.g == pytest.approx(0, abs=1e-9)
    assert peak_to_peak(np.full(1024, constant)) == 0.0


def test_a_burst_that_is_short_or_has_holes_says_nothing() -> None:
    for samples_T in (np.ones(15), np.append(np.ones(50), np.nan), np.append(np.ones(50), np.inf)):
        assert vibration(samples_T[:, None], 800.0) is None
        assert peak_to_peak(samples_T) is None


def test_without_a_rate_there_is_a_strength_and_no_line() -> None:
    found = vibration(tone(STANDARD_GRAVITY, 0.1, 0, 1024)[:, None], None)
    assert found is not None
    assert found.hertz is None
    assert found.g == pytest.approx(1 / math.sqrt(2), rel=0.01)


# --- real fans -------------------------------------------------------------------------------


@cache
def fans(kind: str, room: str) -> npt.NDArray[np.float64]:
    """(log strength, log line) of each recorded spectrum, in the order of the recording."""
    path = FANS / f"12cm_hmlo_{kind}_silent{room}_1.zip"
    rows = []
    with zipfile.ZipFile(path) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith(".csv")):
            hertz_F, amplitude_F = np.loadtxt(
                archive.read(name).decode().splitlines(), delimiter=","
            ).T
            line = dominant_hertz(hertz_F, amplitude_F, 5.0)
            rows.append((math.log(strength(amplitude_F)), math.log(line or 1.0)))
    return np.array(rows)


def at_speed(kind: str, room: str, speed: int) -> npt.NDArray[np.float64]:
    """The fan at its ``speed`` (0 highest): a recording runs through four, a quarter each."""
    features = fans(kind, room)
    quarter = len(features) // 4
    return features[speed * quarter + 6 : (speed + 1) * quarter - 6]


def area(healthy_room: str, judged_room: str, damage: str, speed: int) -> float:
    """Area under the curve of "farther from the healthy fan than a healthy one is"."""
    base = at_speed("normal", healthy_room, speed)
    healthy = at_speed("normal", judged_room, speed)
    if healthy_room == judged_room:
        base, healthy = base[::2], healthy[1::2]

    def distance(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        every = np.linalg.norm(rows[:, None] - base[None], axis=2)
        return np.sort(every, axis=1)[:, 2]

    bad, good = distance(at_speed(damage, judged_room, speed)), distance(healthy)
    return float(np.mean((bad[:, None] > good[None]) + 0.5 * (bad[:, None] == good[None])))


needs_fans = pytest.mark.skipif(
    not FANS.exists(), reason="recordings are not beside the repository"
)


@needs_fans
@pytest.mark.parametrize("room", ["A", "B"])
def test_a_chipped_blade_separates_from_the_same_fan_when_healthy(room: str) -> None:
    assert min(area(room, room, "damage2", speed) for speed in range(3)) > 0.95


@needs_fans
def test_holes_in_a_blade_separate_mostly() -> None:
    areas = [area(room, room, "damage1", speed) for room in "AB" for speed in range(3)]
    assert np.median(areas) > 0.95
    assert min(areas) > 0.6


@needs_fans
def test_in_a_room_never_heard_most_damage_still_separates() -> None:
    areas = [
        area(known, other, damage, speed)
        for known, other in (("A", "B"), ("B", "A"))
        for damage in ("damage1", "damage2")
        for speed in range(3)
    ]
    assert np.median(areas) > 0.95
    assert np.mean(areas) > 0.85


@needs_fans
def test_a_fan_that_stands_still_is_weaker_than_any_that_turns() -> None:
    for room in "AB":
        still = at_speed("normal", room, 3)[:, 0].max()
        turning = min(
            at_speed(k, room, s)[:, 0].min() for k in ("normal", "damage1") for s in range(3)
        )
        assert still < turning - 1.0
