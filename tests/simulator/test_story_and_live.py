"""The demo's story and one rig of it, sampled live."""

import dataclasses
import hashlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.signals import BY_NAME, SIGNAL_NAMES, STATES
from simulator.kinds import KINDS
from simulator.live import SimulatedRig
from simulator.population import sensors_of
from simulator.story import demo_story

RATE = "temperature_rate_celsius_per_second"


def test_demo_story_has_the_agreed_shape():
    story = demo_story()
    assert len(story.nodes) == 16
    assert len(story.devices) == 128
    assert len({card.device for card in story.devices}) == 128
    assert story.duration_seconds == 4 * 3600
    first = story.failures[0]
    assert (first.device, first.node, first.kind) == (
        story.devices[0].device,
        story.nodes[0],
        "vrm_capacitor",
    )
    assert [f.kind for f in story.failures] == [
        "vrm_capacitor",
        "fan_bearing",
        "memory_decay",
        "detach",
    ]
    for failure in story.failures:
        assert 130 * 60 <= failure.failed_at_seconds <= 230 * 60
        assert 50 * 60 <= failure.ramp_seconds <= 100 * 60
    sick = {f.node for f in story.failures}
    assert story.episodes
    assert all(e.node not in sick for e in story.episodes)
    for field in dataclasses.fields(story):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(story, field.name, None)


def test_failing_demo_cards_have_the_sensor_that_shows_it():
    story = demo_story()
    rigs = {rig.node: rig for rig in story.rigs}
    cards = {card.device: card for card in story.devices}
    for failure in story.failures:
        sensors = sensors_of(cards[failure.device], rigs[failure.node])
        assert set(KINDS[failure.kind].signals) <= sensors


@pytest.mark.parametrize(("rigs", "cards"), [(1, 1), (1, 8), (2, 1), (2, 2), (3, 8), (5, 16)])
def test_small_demos_fail_distinct_cards(rigs, cards):
    story = demo_story(rigs=rigs, cards=cards)
    assert len({f.device for f in story.failures}) == len(story.failures) >= 1
    assert {f.device for f in story.failures} <= {c.device for c in story.devices}
    for node in story.nodes:
        assert len(SimulatedRig(story, node).sample(0.0)) == cards


def test_no_rigs_are_refused():
    with pytest.raises(ConfigError, match="rigs must be 1 or more"):
        demo_story(rigs=0)


def test_an_unknown_node_is_named():
    with pytest.raises(ConfigError, match="no node 'rig999'"):
        SimulatedRig(demo_story(rigs=2, cards=1), "rig999")


def test_device_entries_hold_every_signal_but_the_rate():
    story = demo_story(rigs=4, cards=2)
    rigs = {rig.node: rig for rig in story.rigs}
    cards = {card.device: card for card in story.devices}
    wanted = {"device", "index", "vendor", "model", "state", *SIGNAL_NAMES} - {RATE}
    for node in story.nodes:
        for device in SimulatedRig(story, node).sample(10.0):
            assert set(device) == wanted
            assert device["state"] == "ok"
            has = sensors_of(cards[device["device"]], rigs[node])
            for name in SIGNAL_NAMES:
                if name != RATE and name not in has:
                    assert device[name] is None
            json.dumps(device, allow_nan=False)
            assert device["temperature_celsius"] is not None


def test_a_failed_card_is_lost_and_stays_so():
    story = demo_story()
    failure = story.failures[0]
    rig = SimulatedRig(story, failure.node)
    for at in np.arange(failure.failed_at_seconds - 60, failure.failed_at_seconds + 120, 5.0):
        devices = {d["device"]: d for d in rig.sample(float(at))}
        lost = devices[failure.device]["state"] == "lost"
        assert lost == (at >= failure.failed_at_seconds)
        if lost:
            assert all(devices[failure.device][n] is None for n in SIGNAL_NAMES if n != RATE)
        assert all(d["state"] == "ok" for name, d in devices.items() if name != failure.device)


def _digest(node: str = "rig002") -> str:
    rig = SimulatedRig(demo_story(rigs=3, cards=4, seed=11), node)
    samples = [rig.sample(at) for at in (0.0, 5.0, 10.0, 31.5, 400.0, 405.0)]
    return hashlib.sha256(json.dumps(samples).encode()).hexdigest()


def test_the_same_in_another_process():
    assert _digest() == _digest()
    code = (
        "import importlib.util as u; s = u.spec_from_file_location('t', __import__('sys').argv[1]);"
        "m = u.module_from_spec(s); s.loader.exec_module(m); print(m._digest())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == _digest()


def test_another_seed_is_another_story():
    a, b = demo_story(seed=1, rigs=1, cards=1), demo_story(seed=2, rigs=1, cards=1)
    assert a.devices[0].device != b.devices[0].device
    assert SimulatedRig(a, "rig001").sample(0) != SimulatedRig(b, "rig001").sample(0)


def test_time_runs_forwards():
    rig = SimulatedRig(demo_story(rigs=1, cards=1), "rig001")
    rig.sample(100.0)
    rig.sample(100.0)
    with pytest.raises(ValueError, match="forwards"):
        rig.sample(99.0)


@pytest.mark.parametrize("cadence", [1.0, 60.0, 300.0])
def test_another_cadence_tells_the_same_story(cadence):
    story = demo_story(rigs=3, cards=4, seed=5)
    fine, coarse = SimulatedRig(story, "rig003"), SimulatedRig(story, "rig003")
    end = 1800.0 if cadence < 5 else 3600.0
    difference: dict[str, list[float]] = {"temperature_celsius": [], "power_watts": []}
    step = 5.0 if cadence < 5 else 10.0
    wanted = set(np.arange(0.0, end, max(cadence, 20.0)).tolist())
    expected = {at: fine.sample(at) for at in np.arange(0.0, end, step).tolist()}
    for at in np.arange(0.0, end, cadence).tolist():
        got = coarse.sample(at)
        if at in wanted and at >= 300.0:
            for name, values in difference.items():
                values += [
                    abs(g[name] - e[name])
                    for g, e in zip(got, expected[at], strict=True)
                    if g[name] is not None and e[name] is not None
                ]
    assert np.median(difference["temperature_celsius"]) <= 2.0
    assert np.median(difference["power_watts"]) <= 12.0


def test_starting_in_the_middle_is_warm_at_once():
    story = demo_story(rigs=1, cards=2)
    through, late = SimulatedRig(story, "rig001"), SimulatedRig(story, "rig001")
    for at in range(0, 3601, 10):
        expected = through.sample(float(at))
    got = late.sample(3600.0)
    for e, g in zip(expected, got, strict=True):
        assert abs(e["temperature_celsius"] - g["temperature_celsius"]) < 6.0


def test_a_long_story_stays_plausible():
    story = demo_story(seed=3)
    for node in story.nodes[::2]:
        rig = SimulatedRig(story, node)
        for at in range(0, int(story.duration_seconds) + 600, 300):
            for device in rig.sample(float(at)):
                assert device["state"] in STATES
                for name in SIGNAL_NAMES:
                    value = device.get(name)
                    if value is not None:
                        assert math.isfinite(value)
                        assert BY_NAME[name].low <= value <= BY_NAME[name].high
