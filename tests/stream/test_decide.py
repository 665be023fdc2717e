"""From signs to decisions: one episode asks once, hysteresis, exits, budget, restarts."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import START_MS, sample

from contract.minute import MINUTE_MS
from stream import state as node_state
from stream.budget import Budget, BudgetGate
from stream.decide import Decider
from stream.gate import DeviceScore
from stream.policy import Limits, Policy, RiskHysteresis, health_score
from stream.rules import RuleMemory, Sign, check_event, check_sample
from stream.silence import SiteWatch
from stream.state import NodeState

LIMITS = Limits()


def decider(policy: Policy | None = None, devices: int = 100) -> Decider:
    return Decider(policy or Policy(), BudgetGate(Budget(), lambda _: devices), 0.5, "m1")


def scores(minute: int, risk: float | None, device: str = "GPU-a") -> tuple[int, list[DeviceScore]]:
    return START_MS + minute * MINUTE_MS, [DeviceScore(device, 1.0, risk, risk, risk)]


def walk(made: Decider, state: NodeState, risks: Sequence[float | None]) -> list[dict[str, Any]]:
    found = []
    for minute, risk in enumerate(risks):
        at, row = scores(minute, risk)
        _, decisions = made.on_scores(state, at, row, lambda _: [], dry_run=False)
        found += decisions
    return found


def test_a_risk_that_stays_high_asks_for_one_migration() -> None:
    decisions = walk(decider(), NodeState("lab", "rig1"), [0.1] * 5 + [0.9] * 200)
    assert [d["type"] for d in decisions] == ["migration.requested", "device.quarantined"]
    data = decisions[0]["data"]
    assert (data["cause"], data["device"], data["risk"]) == ("predicted", "GPU-a", 0.9)
    # Raised by the second of two scorings in three, at the end of the last minute used.
    assert data["decided_at"] == "2026-01-01T00:07:00.000Z"


def test_a_single_high_scoring_raises_nothing() -> None:
    assert walk(decider(), NodeState("lab", "rig1"), [0.1, 0.9, 0.1, 0.1, 0.9, 0.1]) == []


def test_a_calm_device_is_released_and_a_new_story_gets_a_new_episode() -> None:
    risks = [0.9] * 3 + [0.0] * 245 + [0.9] * 3
    decisions = walk(decider(), NodeState("lab", "rig1"), risks)
    kinds = [d["type"] for d in decisions]
    asked = ["migration.requested", "device.quarantined"]
    assert kinds == [*asked, "device.released", *asked]
    first, _, released, second, _ = (d["data"]["episode_id"] for d in decisions)
    assert first == released != second


def test_not_enough_data_is_said_and_never_scored() -> None:
    state = NodeState("lab", "rig1")
    at, row = scores(0, None)
    risks, decisions = decider().on_scores(state, at, row, lambda _: [], dry_run=False)
    assert risks["devices"][0]["status"] == "not enough data"
    assert risks["devices"][0]["health_score"] is None
    assert decisions == []


def test_a_dry_run_records_and_the_live_run_asks_afterwards() -> None:
    made, state = decider(), NodeState("lab", "rig1")
    sign = Sign("GPU-a", "threshold", "temperature", START_MS, 1.0, ())
    (dry,) = made.on_signs(state, [sign], dry_run=True)
    assert dry["dry_run"]
    assert made.on_signs(state, [sign], dry_run=True) == []
    live, quarantined = made.on_signs(state, [sign], dry_run=False)
    assert quarantined["type"] == "device.quarantined"
    assert not live["dry_run"]
    assert live["decision_id"] != dry["decision_id"]
    assert live["data"]["episode_id"] == dry["data"]["episode_id"]


def test_what_the_budget_holds_is_asked_again_and_the_breaker_speaks_once() -> None:
    made = decider(devices=4)  # at most two moves in ten minutes, two open in all
    states = [NodeState("lab", f"rig{i}") for i in range(4)]
    kinds = []
    for minute in range(3):
        for state in states:
            sign = Sign("GPU", "threshold", "ripple", START_MS + minute * MINUTE_MS, 1.0, ())
            kinds += [d["type"] for d in made.on_signs(state, [sign], dry_run=False)]
    assert kinds.count("migration.requested") == 2
    assert kinds.count("breaker.opened") == 1
    held = [s.devices["GPU"].episode for s in states]
    assert sorted(e.migration for e in held if e) == ["held", "held", "requested", "requested"]


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 39))
def test_a_restart_anywhere_changes_no_decision(risks: list[float | None], cut: int) -> None:
    straight = walk(decider(), NodeState("lab", "rig1"), risks)
    state, found = NodeState("lab", "rig1"), []
    made = decider()
    for minute, risk in enumerate(risks):
        if minute == cut:
            state, made = node_state.unpack(node_state.pack(state)), decider()
            made.restore([state])
        at, row = scores(minute, risk)
        found += made.on_scores(state, at, row, lambda _: [], dry_run=False)[1]
    assert found == straight


@given(st.lists(st.floats(0, 1), max_size=50))
def test_hysteresis_raises_on_k_of_n_only(risks: list[float]) -> None:
    alarm = RiskHysteresis()
    for i, risk in enumerate(risks):
        before = alarm.raised
        after = alarm.update(risk, 0.5)
        recent = risks[max(0, i - 2) : i + 1]
        if after and not before:
            assert sum(r >= 0.5 for r in recent) >= 2
        if before and not after:
            assert max(recent) < 0.3


@given(st.floats(0.001, 0.999), st.floats(0, 1), st.floats(0, 1))
def test_health_falls_with_the_risk_and_crosses_60_at_the_threshold(
    threshold: float, a: float, b: float
) -> None:
    low, high = sorted((a, b))
    assert 0 <= health_score(high, threshold) <= health_score(low, threshold) <= 100
    assert (health_score(a, threshold) <= 60) == (a >= threshold) or a == pytest.approx(threshold)


def run_rules(values: list[dict[str, Any]]) -> list[Sign]:
    memory, signs = RuleMemory(), []
    for i, device in enumerate(values):
        signs += check_sample(sample(i, START_MS + i * 5_000, {"GPU-a": device}), memory, LIMITS)
    return signs


HOT = {"temperature_celsius": 98.0}


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ([HOT] * 3, ["temperature"]),
        ([HOT, HOT, {"temperature_celsius": 90}, HOT, HOT], []),
        ([{"ecc_uncorrected_total": v} for v in (0, 0, 1)], ["ecc_uncorrected"]),
        ([{"ecc_uncorrected_total": v} for v in (5, 5, 0)], []),
        ([{"ecc_uncorrected_total": v} for v in (7,)], []),
        ([{"state": "lost"}] * 2, ["lost"]),
        ([{"state": "unresponsive"}] * 11, []),
        ([{"state": "unresponsive"}] * 12, ["unresponsive"]),
        ([{"state": "unknown"}] * 100, []),
        ([{"vrm_ripple_volts": 0.5}] * 6, ["ripple"]),
        ([{"vrm_ripple_volts": 0.5, "methods": {"vrm_ripple_volts": "spread"}}] * 9, []),
        (
            [{"fan_speed_rpm": 0, "fan_duty_ratio": 0.8, "utilization_ratio": 0.9}] * 3,
            ["fan_stopped"],
        ),
        ([{"fan_speed_rpm": 0, "fan_duty_ratio": 0.0, "utilization_ratio": 0.0}] * 9, []),
    ],
)
def test_rules(values: list[dict[str, Any]], rules: list[str]) -> None:
    assert [s.rule for s in run_rules(values)] == rules


def test_a_fatal_xid_is_a_sign_and_an_application_error_is_not() -> None:
    event = {"device": "GPU-a", "type": "xid", "code": 79}
    sign = check_event(event, START_MS)
    assert sign is not None
    assert sign.cause == "threshold"
    assert check_event(event | {"code": 31}, START_MS) is None
    assert check_event(event | {"device": None}, START_MS) is None


class TestSilence:
    """A silent node, a lost card and a dead broker are three different things."""

    def watch(self, nodes: int = 4) -> SiteWatch:
        made = SiteWatch(Policy())
        for n in range(nodes):
            made.heard(f"lab/rig{n}", "lab", START_MS, START_MS)
        return made

    def speak(self, made: SiteWatch, nodes: Sequence[int], seconds: int) -> None:
        for n in nodes:
            at = START_MS + seconds * 1000
            made.heard(f"lab/rig{n}", "lab", at, at)

    def test_a_node_silent_for_a_minute_while_the_others_speak_is_lost_once(self) -> None:
        made = self.watch()
        self.speak(made, (1, 2, 3), 59)
        assert made.lost() == []
        self.speak(made, (1, 2, 3), 60)
        assert made.lost() == [("lab/rig0", START_MS)]
        assert made.lost() == []

    def test_silence_of_most_is_a_broken_observer(self) -> None:
        made = self.watch()
        self.speak(made, (0, 1), 600)
        assert made.lost() == []

    def test_silence_of_all_moves_nothing(self) -> None:
        assert self.watch().lost() == []

    def test_a_node_that_said_offline_is_lost_sooner(self) -> None:
        made = self.watch()
        made.said("lab/rig0", offline=True, received_ms=START_MS)
        self.speak(made, (1, 2, 3), 20)
        assert made.lost() == [("lab/rig0", START_MS)]

    def test_a_connection_that_broke_for_a_moment_in_a_fast_replay_is_not_offline(self) -> None:
        made = self.watch()
        made.said("lab/rig0", offline=True, received_ms=START_MS)
        for n in (1, 2, 3):
            made.heard(f"lab/rig{n}", "lab", START_MS + 120_000, START_MS + 2_000)
        assert made.lost() == []

    def test_a_partition_that_is_read_later_than_the_others_is_not_silent(self) -> None:
        made = SiteWatch(Policy())
        for n in range(6):
            made.heard(f"lab/rig{n}", "lab", START_MS, START_MS, partition=n % 3)
        for n, at in ((n, START_MS + s * 60_000) for s in range(1, 11) for n in (0, 1, 3, 4)):
            made.heard(f"lab/rig{n}", "lab", at, at, n % 3)
        assert made.lost() == []
        # Once there is nothing left to read on it, its nodes are held against the site.
        assert made.lost(idle={2}) == [("lab/rig2", START_MS), ("lab/rig5", START_MS)]

    def test_after_a_restart_silence_counts_from_then_on(self) -> None:
        made = SiteWatch(Policy())
        for n in range(4):
            made.restore(f"lab/rig{n}", "lab", START_MS, 0)
        later = 1_200
        self.speak(made, (1, 2, 3), later)
        assert made.lost() == []
        self.speak(made, (1, 2, 3), later + 59)
        assert made.lost() == []
        self.speak(made, (1, 2, 3), later + 60)
        assert [key for key, _ in made.lost()] == ["lab/rig0"]

    def test_telemetry_read_after_the_farewell_but_sent_before_does_not_undo_it(self) -> None:
        made = self.watch()
        made.said("lab/rig0", offline=True, received_ms=START_MS + 1_000)
        made.heard("lab/rig0", "lab", START_MS + 900, START_MS + 950)
        self.speak(made, (1, 2, 3), 20)
        assert [key for key, _ in made.lost()] == ["lab/rig0"]
        made.said("lab/rig0", offline=True, received_ms=START_MS + 30_000)
        made.heard("lab/rig0", "lab", START_MS + 31_000, START_MS + 31_000)
        self.speak(made, (1, 2, 3), 60)
        assert made.lost() == []

    def test_an_old_retained_offline_of_a_node_that_never_spoke_means_nothing(self) -> None:
        made = self.watch()
        made.said("lab/gone", offline=True, received_ms=START_MS)
        self.speak(made, (0, 1, 2, 3), 600)
        assert made.lost() == []

    def test_event_time_that_jumps_in_a_fast_replay_is_not_silence(self) -> None:
        made = self.watch()
        for n in (1, 2, 3):
            made.heard(f"lab/rig{n}", "lab", START_MS + 600_000, START_MS + 100)
        assert made.lost() == []

    def test_a_node_that_returned_can_be_lost_again(self) -> None:
        made = self.watch()
        self.speak(made, (1, 2, 3), 60)
        assert made.lost()
        self.speak(made, (0, 1, 2, 3), 120)
        self.speak(made, (1, 2, 3), 200)
        assert made.lost() == [("lab/rig0", START_MS + 120_000)]
