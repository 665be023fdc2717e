"""The load of the benchmark: what it says, how often, and how much of it may be moved."""

from collections import Counter
from itertools import islice

import orjson
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.e2e.load import BASE_RIGS, Bodies, Plan, compose
from benchmarks.e2e.parts import sums
from benchmarks.e2e.signs import MAX_SIGNS, plan_signs
from contract.message import check_telemetry
from stream.budget import BudgetPolicy
from stream.validate import decode

START = 1_767_225_600.0


def plan(cards: int = 20, cards_a_node: int = 8, nodes_a_site: int = 2) -> Plan:
    return Plan(cards, cards_a_node, nodes_a_site, 5.0, 60.0, START, START + 600, "run")


@given(cards=st.integers(1, 500), width=st.integers(1, 16), nodes=st.integers(1, 9))
def test_nodes_hold_every_card_once(cards, width, nodes):
    found = plan(cards, width, nodes).nodes()
    devices = [device for node in found for device in node.devices]
    assert len(devices) == len(set(devices)) == cards
    assert len({node.key for node in found}) == len(found) == -(-cards // width)
    assert max(Counter(node.site for node in found).values()) <= nodes
    assert all(0 <= node.phase < 1 and 0 <= node.base < BASE_RIGS for node in found)


def test_history_is_slow_then_fast_and_goes_on_in_real_time():
    ticks = list(islice(plan().ticks(), 14))
    assert [at - START for at, _ in ticks[:10]] == [60.0 * k for k in range(10)]
    assert ticks[10:] == [(START + 600 + 5.0 * k, 5.0) for k in range(4)]


def test_messages_are_what_the_contract_says():
    bodies = Bodies(8)
    nodes = plan().nodes()
    repairs: Counter[str] = Counter()
    seen = []
    for seq, at in enumerate((0.0, 5.0)):
        base = bodies.at(at)
        for node in nodes:
            payload = compose(
                node, base[node.base], boot_id="boot", seq=seq, ts=START + at, interval=5.0,
                uncorrected={node.devices[0]: seq},
            )  # fmt: skip
            now_ms = round((START + at) * 1000)
            message = check_telemetry(orjson.loads(payload), now_ms)
            sample = decode(message, now_ms, repairs)
            assert sample.devices == node.devices
            assert [d["ecc_uncorrected_total"] for d in message["devices"]] == [
                seq if i == 0 else 0 for i in range(len(node.devices))
            ]
            seen.append(payload)
    assert not repairs
    assert len(set(seen)) == len(seen)
    assert all("temperature_rate_celsius_per_second" in p.decode() for p in seen)


@given(cards=st.integers(1, 3_000), nodes_a_site=st.integers(1, 40))
def test_signs_stay_within_the_budget_of_every_site(cards, nodes_a_site):
    nodes = plan(cards, 8, nodes_a_site).nodes()
    signs = plan_signs(nodes, START, START + 60)
    assert 1 <= len(signs) <= MAX_SIGNS
    assert len({device for _, _, device in signs}) == len(signs)
    assert all(START <= at < START + 60 for at, _, _ in signs)
    known = Counter({n.site: 0 for n in nodes})
    for node in nodes:
        known[node.site] += len(node.devices)
    by_site = Counter(key.split("/")[0] for _, key, _ in signs)
    policy = BudgetPolicy()
    for site, count in by_site.items():
        assert count <= min(policy.window_limit(known[site]), policy.open_limit(known[site]))


def test_counters_are_added_up_over_labels():
    text = (
        "# HELP rigcanary_bridge_messages_total x\n"
        'rigcanary_bridge_messages_total{kind="telemetry"} 3.0\n'
        'rigcanary_bridge_messages_total{kind="events"} 2.0\n'
        "rigcanary_bridge_unacked_messages 1.0\nother 7.0\n"
    )
    assert sums(text) == {"messages_total": 5.0, "unacked_messages": 1.0}
