"""Many at once: what the budget allows moves, the rest waits in order; silence moves nothing."""

import random
import sys
from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest
from stream_samples import START_MS

from contract.minute import MINUTE_MS
from contract.signals import SIGNAL_NAMES
from stream import manual
from stream.budget import Budget, BudgetGate
from stream.decide import Decider
from stream.gate import DeviceScore
from stream.policy import Policy
from stream.rules import Sign, check_sample
from stream.silence import SiteWatch
from stream.state import NodeState
from stream.validate import STATE_OK, Sample


class Site:
    """A site of many nodes in the decider's memory."""

    def __init__(self, nodes: int, cards: int, policy: Policy | None = None) -> None:
        self.states = {f"rig{n:04}": NodeState("lab", f"rig{n:04}") for n in range(nodes)}
        self.made = Decider(
            policy or Policy(), BudgetGate(Budget(), lambda _: nodes * cards), 0.5, "m1"
        )
        self.cards = [f"GPU-{c}" for c in range(cards)]
        self.decisions: list[dict[str, Any]] = []

    def score(self, minute: int, risk: Any = lambda node, card: 0.1) -> None:
        for name, state in self.states.items():
            scores = [
                DeviceScore(c, 1.0, None, None, risk(name, c), True, 60.0) for c in self.cards
            ]
            at_ms = START_MS + minute * MINUTE_MS
            found = self.made.on_scores(state, at_ms, scores, lambda _: [], dry_run=False)[1]
            self.decisions += found
        self.turn()

    def sign(self, node: str, device: str | None, cause: Any, rule: str, at_ms: int) -> None:
        sign = Sign(device, cause, rule, at_ms, 1.0, ())
        self.decisions += self.made.on_signs(self.states[node], [sign], dry_run=False)

    def turn(self) -> None:
        for _, found in self.made.next_in_turn(lambda _, node: self.states[node], dry_run=False):
            self.decisions += found

    def moved(self) -> list[dict[str, Any]]:
        return [d["data"] for d in self.decisions if d["type"] == "migration.requested"]

    def kinds(self) -> Counter[str]:
        return Counter(d["type"] for d in self.decisions)


def test_150_of_1500_nodes_fail_in_the_same_second() -> None:
    site = Site(1_500, 1)
    watch = SiteWatch(Policy())
    failing = sorted(random.Random(1).sample(sorted(site.states), 150))
    risk = {name: (i * 7919 % 1_500) / 4_000 for i, name in enumerate(site.states)}
    site.score(0, lambda node, _: risk[node])
    for name in site.states:
        watch.heard(name, "lab", START_MS + MINUTE_MS, START_MS + MINUTE_MS)
    for second in range(0, 121, 5):
        at = START_MS + MINUTE_MS + second * 1000
        for name in site.states.keys() - failing:
            watch.heard(name, "lab", at, at)
        for name, newest_ms in watch.lost():
            site.sign(name, None, "node_lost", "silent", newest_ms)
    assert site.kinds() == {"migration.requested": 75, "breaker.opened": 1}
    waiting = [n for n in failing if site.states[n].node_episode.waits]  # type: ignore[union-attr]
    assert len(waiting) == len(site.made.waiting) == 75

    # A person closes the breaker when the window has passed: the rest goes, the riskiest first.
    healthy = NodeState("lab", "rig9999")
    site.states["rig9999"] = healthy
    site.made.on_scores(healthy, START_MS + 12 * MINUTE_MS, [], lambda _: [], dry_run=False)
    before = len(site.moved())
    close = {
        "schema": manual.SCHEMA, "command_id": "cmd_12345678", "command": "breaker.close",
        "site": "lab", "reason": "seen", "by": "mei", "at": START_MS / 1000,
    }  # fmt: skip
    site.decisions += manual.apply(site.made, healthy, manual.parse(close))[0]
    site.turn()
    order = [data["node"] for data in site.moved()[before:]]
    assert order == sorted(waiting, key=lambda name: (-risk[name], name))
    assert site.kinds()["breaker.closed"] == 1


def test_a_storm_past_twice_the_limit_opens_the_breaker_again_for_what_is_left() -> None:
    site = Site(100, 1)
    for minute in range(45):
        for n in range(20):
            site.sign(f"rig{n:04}", "GPU-0", "threshold", "ripple", START_MS + minute * MINUTE_MS)
        site.score(minute)
        moved = len(site.moved())
        assert moved <= 5
    assert site.kinds()["breaker.opened"] == 1
    assert len(site.made.waiting) == 15


def test_a_broker_silent_for_ten_minutes_moves_none_of_10_000_cards() -> None:
    watch = SiteWatch(Policy())
    names = [f"lab/rig{n}" for n in range(1_250)]  # eight cards each
    rng = random.Random(2)
    for second in range(0, 60, 20):
        for n, name in enumerate(names):
            at = START_MS + second * 1000
            watch.heard(name, "lab", at, at, partition=n % 4)
    for _ in range(20):
        assert watch.lost(idle={0, 1, 2, 3}) == []
    # It is back: the agents reconnect within half a minute of each other, in any order.
    back = START_MS + 660_000
    returns = {name: back + rng.randrange(0, 30_000) for name in names}
    for second in range(0, 120, 4):
        now = back + second * 1000
        for n, name in enumerate(names):
            if returns[name] <= now:
                watch.heard(name, "lab", now, now, partition=n % 4)
        assert watch.lost() == []


def test_half_of_a_site_that_returns_at_once_does_not_condemn_the_other_half() -> None:
    watch = SiteWatch(Policy())
    for n in range(10):
        watch.heard(f"lab/rig{n}", "lab", START_MS, START_MS)
    assert watch.lost() == []
    later = START_MS + 600_000
    for n in range(6):
        watch.heard(f"lab/rig{n}", "lab", later, later)
    assert watch.lost() == []
    # What stays silent from then on is lost all the same.
    for n in range(6):
        watch.heard(f"lab/rig{n}", "lab", later + 61_000, later + 61_000)
    assert len(watch.lost()) == 4


def hot_sample(seq: int, ts_ms: int, node: str, celsius: float) -> Sample:
    x_DS = np.full((8, len(SIGNAL_NAMES)), np.nan)
    x_DS[:, SIGNAL_NAMES.index("temperature_celsius")] = celsius
    return Sample(
        "lab", node, "b", seq, ts_ms, 5.0, tuple(f"GPU-{c}" for c in range(8)),
        ({},) * 8, np.full(8, STATE_OK, np.uint8), x_DS,
    )  # fmt: skip


def test_an_air_conditioning_trip_heats_2_000_healthy_cards() -> None:
    site = Site(250, 8)
    for n in range(16):
        at_ms, celsius = START_MS + n * 5_000, 84.0 + n
        for name, state in site.states.items():
            sample = hot_sample(n, at_ms, name, celsius)
            signs = check_sample(sample, state.rules, site.made.policy.limits)
            site.decisions += site.made.on_signs(state, signs, dry_run=False)
    assert len(site.moved()) == 100  # 5 % of 2,000
    assert site.kinds()["breaker.opened"] == 1
    (opened,) = [d["data"] for d in site.decisions if d["type"] == "breaker.opened"]
    assert "more than 100 moves asked for within 10 minutes, of 2000 devices" in opened["reason"]
    assert "signs: temperature 10" in opened["reason"]
    assert len(site.made.waiting) == 1_900


def test_predictions_that_used_up_the_budget_do_not_hold_back_a_lost_card() -> None:
    site = Site(40, 1)
    for n in range(10):
        site.sign(f"rig{n:04}", "GPU-0", "predicted", "predicted", START_MS + n)
    assert site.kinds()["breaker.opened"] == 1
    site.sign("rig0020", "GPU-0", "lost", "lost", START_MS + 100)
    assert site.moved()[-1]["node"] == "rig0020"
    # But a driver that calls every card lost is no reason to stop every job at once.
    for n in range(21, 40):
        site.sign(f"rig{n:04}", "GPU-0", "lost", "lost", START_MS + 200 + n)
    assert sum(d["cause"] == "lost" for d in site.moved()) == 2
    # A driver that does not answer may be the checker's fault: that has no window of its own.
    site.sign("rig0019", "GPU-0", "lost", "unresponsive", START_MS + 300)
    assert site.moved()[-1]["node"] != "rig0019"


def test_a_whole_node_may_move_at_a_small_site_and_counts_as_its_cards() -> None:
    site = Site(4, 8)
    site.score(0)
    site.sign("rig0000", None, "node_lost", "silent", START_MS + MINUTE_MS)
    site.sign("rig0001", None, "node_lost", "silent", START_MS + MINUTE_MS)
    assert len(site.moved()) == 2
    site.sign("rig0002", None, "node_lost", "silent", START_MS + MINUTE_MS)
    assert len(site.moved()) == 2


def scripted(seed: int) -> bytes:
    """All decisions of a random but fixed day, as bytes."""
    rng, site = random.Random(seed), Site(20, 4)
    risks = {(n, c): 0.1 for n in site.states for c in site.cards}
    for minute in range(90):
        for key in risks:
            if rng.random() < 0.02:
                risks[key] = rng.random()
        if rng.random() < 0.3:
            node = rng.choice(sorted(site.states))
            site.sign(node, "GPU-1", "threshold", "ripple", START_MS + minute * MINUTE_MS)
        site.score(minute, lambda n, c: risks[n, c])
    return b"\n".join(map(orjson.dumps, site.decisions))


def test_the_same_input_gives_the_same_decisions_byte_for_byte() -> None:
    assert scripted(4) == scripted(4)
    assert scripted(4) != scripted(5)
    assert b"breaker.opened" in scripted(4)


def _bytes(value: Any, seen: set[int]) -> int:
    if id(value) in seen:
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(_bytes(k, seen) + _bytes(v, seen) for k, v in value.items())
    if isinstance(value, list | tuple | set):
        return size + sum(_bytes(v, seen) for v in value)
    names = [*getattr(value, "__slots__", ()), *getattr(value, "__dict__", {})]
    return size + sum(_bytes(getattr(value, n), seen) for n in names if hasattr(value, n))


@pytest.mark.slow
def test_100_000_devices_in_state_take_bounded_memory() -> None:
    site = Site(2_500, 40)
    site.score(0)
    some = list(site.states.values())[:50]
    quiet = _bytes(some, set())
    assert quiet < 50 * 40 * 1_500
    for minute in range(1, 20):
        for state in some:
            at_ms = START_MS + minute * MINUTE_MS
            scores = [DeviceScore(c, 1.0, None, None, 0.1, True, 60.0) for c in site.cards]
            site.made.on_scores(state, at_ms, scores, lambda _: [], dry_run=False)
    assert _bytes(some, set()) < quiet * 1.5
    assert all(len(s.devices) == 40 for s in site.states.values())


def test_names_that_come_and_go_do_not_fill_the_state() -> None:
    site = Site(1, 1)
    (state,) = site.states.values()
    for minute in range(60):
        for n in range(50):
            site.sign("rig0000", f"X{minute}-{n}", "lost", "lost", START_MS + minute * MINUTE_MS)
        site.score(minute)
    assert len(state.devices) <= 1_100
    assert len(site.made.waiting) <= 1_100
    assert len(state.closed) <= 16
