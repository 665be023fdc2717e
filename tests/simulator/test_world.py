"""What breaks shows, what is harmless does not break, and who is asked with whom is no matter."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.signals import SIGNALS
from simulator.fleet import FleetSpec, fleet_story
from simulator.harmless import HARMLESS, Episode
from simulator.kinds import KINDS
from simulator.sensors import ROW, poisson
from simulator.story import Card, Failure, Rig, Story, device_name
from simulator.world import LOST, OK, UNRESPONSIVE, World

HOUR = 3600.0
NODE = "rig001"
# A fan that never rests, ECC counts, a thermometer in its memory: all that can be measured.
ALL_MODELS = ("RTX A6000", "GeForce GTX 1070 Ti", "Blackhole p150a", "RTX A6000")


def small_story(seed, failures=(), episodes=(), domain="default"):
    cards = tuple(
        Card(device_name(seed, "s", NODE, i), NODE, i, model) for i, model in enumerate(ALL_MODELS)
    )
    made = tuple(Failure(cards[i].device, NODE, kind, at, ramp) for i, kind, at, ramp in failures)
    some = tuple(
        Episode(kind, NODE, None if i is None else cards[i].device, at, seconds, size)
        for kind, i, at, seconds, size in episodes
    )
    return Story("s", seed, 8 * HOUR, (Rig(NODE),), cards, made, some, domain, (NODE,))


def play(story, start=0.0, end=4 * HOUR, step=30.0):
    """Values [T, S, D] and states [T, D]."""
    world = World(story)
    samples = [world.sample(at) for at in np.arange(start, end, step).tolist()]
    return (
        np.array([s.values_SD for s in samples]),
        np.array([s.state_D for s in samples]),
        samples,
    )


@functools.cache
def healthy(seed):
    """The values of :func:`small_story` without failures or episodes."""
    return play(small_story(seed))[0]


def moved(sick_T, well_T):
    """How far a signal went from what it would have been, in units of what it usually does."""
    both = np.isfinite(sick_T) & np.isfinite(well_T)
    if not both.any():
        return 0.0
    usual = np.nanstd(np.diff(well_T[both])) + 1e-6
    return float(np.abs(np.mean(sick_T[both] - well_T[both])) / usual)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k.signals], ids=lambda k: k.name)
def test_every_kind_with_a_precursor_moves_its_signals(kind, seed):
    cards = range(4) if kind.whole_rig else (0,)
    failed_at = 3.5 * HOUR
    ramp = min(2.5 * HOUR, 60.0 * sum(kind.ramp_minutes) / 2)
    sick = small_story(seed, [(i, kind.name, failed_at, ramp) for i in cards])
    sick_TSD, state_TD, _ = play(sick, end=failed_at + 60)
    well_TSD = healthy(seed)
    before = slice(0, int((failed_at - ramp) / 30))
    late = slice(int((failed_at - 0.35 * ramp) / 30), int(failed_at / 30))
    np.testing.assert_array_equal(sick_TSD[before], well_TSD[before])
    assert (state_TD[-1, list(cards)] == LOST).all()
    if kind.name == "detach":
        assert np.isnan(sick_TSD[late, 0, 0]).mean() > 0.02
        return
    strengths = {
        name: moved(sick_TSD[late, ROW[name], 0], well_TSD[late, ROW[name], 0])
        for name in kind.signals
    }
    assert max(strengths.values()) > 0.5, strengths


@pytest.mark.parametrize("seed", range(2))
def test_sudden_gives_no_hint(seed):
    failed_at = 2 * HOUR
    sick_TSD, state_TD, _ = play(small_story(seed, [(0, "sudden", failed_at, 0.0)]))
    well_TSD = healthy(seed)
    end = int(failed_at / 30)
    np.testing.assert_array_equal(sick_TSD[:end], well_TSD[:end])
    assert (state_TD[:end, 0] == OK).all()
    assert (state_TD[end:, 0] == LOST).all()
    assert np.isnan(sick_TSD[end:, :, 0]).all()


@pytest.mark.parametrize("kind", list(HARMLESS.values()), ids=lambda k: k.name)
def test_harmless_things_end_and_break_nothing(kind):
    card = 0 if kind.reach == "card" else None
    episode = (kind.name, card, HOUR, 1200.0, 0.7)
    with_TSD, state_TD, samples = play(small_story(1, episodes=[episode]))
    without_TSD = healthy(1)
    first, last = int(HOUR / 30), int((HOUR + 1200.0) / 30)
    np.testing.assert_array_equal(with_TSD[:first], without_TSD[:first])
    assert not (state_TD == LOST).any()
    silent_T = np.array([s.silent_D.all() for s in samples])
    changed = (
        not np.array_equal(with_TSD[first:last], without_TSD[first:last], equal_nan=True)
        or silent_T[first:last].all()
        or (state_TD[first:last] == UNRESPONSIVE).any()
    )
    # A driver that is reloaded while nothing has been counted shows nothing.
    assert changed or kind.name == "counter_reset"
    # An hour and a half later all that is left are counts.
    gauges = [ROW[s.name] for s in SIGNALS if s.kind == "gauge"]
    rest = slice(last + 180, None)
    np.testing.assert_allclose(
        with_TSD[rest][:, gauges], without_TSD[rest][:, gauges], rtol=0.02, atol=1.01
    )


def test_counters_only_fall_when_the_driver_is_reloaded():
    ecc = ROW["ecc_corrected_total"]
    failures = [(0, "memory_decay", 3.9 * HOUR, 3 * HOUR)]
    values_TSD, _, _ = play(small_story(2, failures), end=3.8 * HOUR)
    counts_T = values_TSD[:, ecc, 0]
    assert (np.diff(counts_T[np.isfinite(counts_T)]) >= 0).all()
    reset = ("counter_reset", None, 3.0 * HOUR, 30.0, 0.5)
    values_TSD, _, _ = play(small_story(2, failures, [reset]), end=3.8 * HOUR)
    falls = np.diff(values_TSD[:, ecc, 0]) < 0
    assert falls.sum() == 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("domain", ["default", "wide"])
def test_fleets_stay_plausible(seed, domain):
    story = fleet_story(
        FleetSpec(rigs=12, cards=4, days=0.5, seed=seed, domain=domain, failure_share=0.8)
    )
    values_TSD, _, _ = play(story, end=43_200.0, step=120.0)
    for s, signal in enumerate(SIGNALS):
        seen = values_TSD[:, s][np.isfinite(values_TSD[:, s])]
        assert signal.name == "temperature_rate_celsius_per_second" or seen.size
        assert ((seen >= signal.low) & (seen <= signal.high)).all(), signal.name
    temperature = values_TSD[:, 0][np.isfinite(values_TSD[:, 0])]
    assert 35 < np.median(temperature) < 75


def test_a_rig_alone_is_the_rig_in_the_fleet():
    story = fleet_story(FleetSpec(rigs=5, cards=3, days=0.2, seed=4))
    together, alone = World(story), World(story, ["rig003"])
    mine = [d for d, card in enumerate(story.devices) if card.node == "rig003"]
    for at in np.arange(0.0, 6000.0, 25.0).tolist():
        all_of, one = together.sample(at), alone.sample(at)
        np.testing.assert_allclose(all_of.values_SD[:, mine], one.values_SD, rtol=1e-12)
        np.testing.assert_array_equal(all_of.state_D[mine], one.state_D)
        np.testing.assert_array_equal(all_of.silent_D[mine], one.silent_D)


def test_worn_out_supply_takes_the_whole_rig():
    story = fleet_story(
        FleetSpec(rigs=8, cards=4, days=1, seed=2, failure_share=0.5, kinds=("psu_sag",))
    )
    assert story.failures
    by_node: dict[str, set[float]] = {}
    for failure in story.failures:
        by_node.setdefault(failure.node, set()).add(failure.failed_at_seconds)
    assert all(len(times) == 1 for times in by_node.values())
    assert len(story.failures) == 4 * len(by_node)


def test_failures_fit_the_cards():
    story = fleet_story(FleetSpec(rigs=60, cards=8, days=2, seed=8, failure_share=0.5))
    cards = {card.device: card.card_model for card in story.devices}
    assert len({f.device for f in story.failures}) == len(story.failures)
    assert abs(len(story.failures) - 240) <= 8
    assert {f.kind for f in story.failures} == set(KINDS)
    for failure in story.failures:
        assert 2 * HOUR <= failure.failed_at_seconds <= 2 * 86_400
        assert not KINDS[failure.kind].needs_fan or cards[failure.device].fan
        assert not KINDS[failure.kind].needs_ecc or cards[failure.device].ecc
    assert fleet_story(FleetSpec(rigs=60, cards=8, days=2, seed=8, failure_share=0.5)) == story


@pytest.mark.parametrize(
    "change",
    [
        {"rigs": 0},
        {"cards": 17},
        {"days": 0.0},
        {"days": float("nan")},
        {"failure_share": 1.1},
        {"interval_seconds": 0.0},
        {"kinds": ("rust",)},
        {"site": "a/b"},
        {"domain": "narrow"},
    ],
)
def test_impossible_fleets_are_refused(change):
    with pytest.raises(ConfigError, match=r"must be|there is no"):
        fleet_story(dataclasses.replace(FleetSpec(), **change))


@settings(max_examples=25, deadline=None)
@given(mean=st.floats(0.001, 60.0), seed=st.integers(0, 2**32))
def test_poisson_has_the_mean_and_variance_of_one(mean, seed):
    rng = np.random.default_rng(seed)
    n = 4000
    drawn = poisson(np.full(n, mean), rng.random(n), rng.standard_normal(n))
    assert (drawn >= 0).all()
    assert (drawn == np.rint(drawn)).all()
    error = 6 * np.sqrt(mean / n) + 0.02 * mean
    assert abs(drawn.mean() - mean) < error
    assert drawn.var() < 1.6 * mean + 0.1
