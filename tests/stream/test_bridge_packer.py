"""Packing is lossless, ordered per node and bounded, whatever comes in."""

import base64
import json
import random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from contract.deadletter import MAX_DEAD_BYTES, REASONS
from contract.topics import DEAD_LETTER, EVENTS, TELEMETRY
from stream.bridge_settings import BridgeSettings
from stream.edge.backoff import MAX_SECONDS, backoff_seconds
from stream.edge.bridge_packer import (
    Incoming,
    Outgoing,
    pack,
    partition_of,
    split,
)
from stream.edge.mqtt_link import subscriptions

NOW_MS = 1_767_225_600_000


def telemetry(node: str, seq: int, **extra: object) -> bytes:
    return json.dumps({
        "schema": "rigcanary.telemetry/1", "site": "lab", "node": node, "boot_id": "b", "seq": seq,
        "ts": NOW_MS / 1000, "interval_seconds": 5.0, "devices": [], **extra,
    }).encode()  # fmt: skip


def incoming(node: str, payload: bytes, kind: str = "telemetry", **more: object) -> Incoming:
    return Incoming(f"rigcanary/v1/lab/{node}/{kind}", payload, NOW_MS, **more)  # type: ignore[arg-type]


good = st.builds(
    lambda node, seq, pad: incoming(node, telemetry(node, seq, pad="x" * pad)),
    st.sampled_from(["r1", "r2", "r3", "rig-4"]), st.integers(0, 2**62), st.integers(0, 3000),
)  # fmt: skip
anything = st.builds(
    Incoming,
    st.sampled_from(["rigcanary/v1/lab/r1/telemetry", "rigcanary/v1/lab/r1/status",
                     "rigcanary/v1/lab/r1/events", "rigcanary/v1/a b/r1/events", "x", ""]),
    st.one_of(st.binary(max_size=60), st.sampled_from([b"{}", b"[]", b"null", b"1", b'"a"'])),
    st.just(NOW_MS),
)  # fmt: skip


@given(st.lists(st.one_of(good, anything), max_size=40), st.integers(1, 7), st.integers(1000, 9000))
def test_every_message_is_in_exactly_one_record(items, partitions, limit):
    records, tally = pack(items, partitions, limit)
    carried = [id(m) for r in records for m in r.messages]
    assert len(carried) == len(set(carried))
    cleared = tally.kinds.get("status_cleared", 0)
    assert len(carried) + cleared == len(items) == sum(tally.kinds.values())
    for record in records:
        value = orjson.loads(record.value)
        if record.topic == TELEMETRY:
            bodies = value["messages"]
            assert [orjson.loads(m.payload) for m in record.messages] == bodies
            assert len(record.value) <= limit or len(bodies) == 1
            keys = {f"lab/{b['node']}".encode() for b in bodies}
            assert {partition_of(k, partitions) for k in keys} == {record.partition}
            assert record.key == (keys.pop() if len(keys) == 1 else None)
        elif record.topic == DEAD_LETTER:
            assert value["reason"] in REASONS
            assert base64.b64decode(value["payload_base64"]) == record.messages[0].payload


@given(st.lists(good, max_size=60), st.integers(1, 5))
def test_order_per_node_is_that_of_arrival(items, partitions):
    records, _ = pack(items, partitions, 2_000)
    for node in {i.topic for i in items}:
        sent = [id(i) for i in items if i.topic == node]
        assert [id(m) for r in records for m in r.messages if m.topic == node] == sent


def test_original_bytes_are_kept_unless_only_the_tolerant_reader_understood_them():
    plain = telemetry("r1", 1).replace(b'"ts"', b'  "ts" ')
    odd = telemetry("r1", 2, note=float("nan"))
    records, tally = pack([incoming("r1", plain), incoming("r1", odd)], 4, 500_000)
    assert tally.repaired == 1
    assert plain in records[0].value
    assert orjson.loads(records[0].value)["messages"][1]["note"] is None


@pytest.mark.parametrize("depth", [250, 1020, 1021, 1022, 1023, 1024, 5000])
def test_a_deep_message_never_makes_a_record_unreadable(depth):
    deep = telemetry("r1", 1)[:-1] + b', "x": ' + b"[" * depth + b"]" * depth + b"}"
    records, tally = pack([incoming("r1", telemetry("r1", 0)), incoming("r1", deep)], 4, 500_000)
    assert sum(len(r.messages) for r in records) == 2
    for record in records:
        orjson.loads(record.value)
    assert tally.dead.keys() <= {"not-json"}


def test_text_that_cannot_be_written_again_is_a_dead_letter():
    records, tally = pack([incoming("r1", b'{"a": NaN, "b": "\\ud800"}')], 4, 500_000)
    assert [r.topic for r in records] == [DEAD_LETTER]
    assert tally.dead == {"not-json": 1}


def test_the_other_encodings_that_python_reads_become_utf8():
    text = telemetry("r1", 1).decode()
    items = [incoming("r1", text.encode("utf-8-sig")), incoming("r1", text.encode("utf-16"))]
    records, _ = pack(items, 4, 500_000)
    assert [m["seq"] for m in orjson.loads(records[0].value)["messages"]] == [1, 1]


def test_a_huge_payload_is_a_dead_letter_that_fits_kafka():
    records, _ = pack([incoming("r1", b"x" * 3_000_000)], 4, 500_000)
    value = orjson.loads(records[0].value)
    assert value["reason"] == "too-large"
    assert "3000000 bytes" in value["detail"]
    assert len(base64.b64decode(value["payload_base64"])) == MAX_DEAD_BYTES
    assert len(records[0].value) < 1_000_000


STATUS = {"state": "online", "boot_id": "b", "ts": NOW_MS / 1000}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ([], "schema"),
        ({"state": "online", "ts": 1.8e9}, "missing-key"),
        ({**STATUS, "state": "asleep"}, "bad-value"),
        ({**STATUS, "boot_id": ""}, "bad-value"),
        ({**STATUS, "ts": "now"}, "bad-value"),
        ({**STATUS, "ts": NOW_MS / 1000 + 301}, "future"),
    ],
)
def test_a_bad_status_is_a_dead_letter(status, reason):
    records, tally = pack([incoming("r1", orjson.dumps(status), "status")], 4, 500_000)
    assert [r.topic for r in records] == [DEAD_LETTER]
    assert tally.dead == {reason: 1}


def test_a_status_becomes_an_event_that_the_contract_accepts():
    from contract.message import check_event

    for state in ("online", "offline"):
        payload = orjson.dumps({**STATUS, "state": state})
        records, _ = pack([incoming("r1", payload, "status", retained=True)], 4, 500_000)
        assert records[0].topic == EVENTS
        event = check_event(orjson.loads(records[0].value), NOW_MS)
        assert event["type"] == f"node_{state}"
        assert event["retained"] is True
        assert event["raw"] == payload.decode()


def test_an_emptied_retained_status_is_nothing():
    records, tally = pack([incoming("r1", b"", "status")], 4, 500_000)
    assert records == []
    assert tally.kinds == {"status_cleared": 1}


@given(st.lists(good, min_size=1, max_size=20))
def test_splitting_ends_in_records_of_one_and_then_in_dead_letters(items):
    records, _ = pack(items, 1, 500_000)
    queue, letters, rounds = records, 0, 0
    while queue and rounds < 10:
        rounds += 1
        letters = sum(r.topic == DEAD_LETTER for r in queue)
        queue = [part for r in queue if r.topic == TELEMETRY for part in split(r)]
    assert rounds < 10
    assert letters >= 0


def test_a_dead_letter_that_kafka_refuses_keeps_its_reason_without_bytes():
    letter = Outgoing(DEAD_LETTER, None, b"", None, [incoming("r1", b"abc")])
    (bare,) = split(letter)
    assert orjson.loads(bare.value)["payload_base64"] == ""


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers())
def test_back_off_is_bounded_and_has_jitter(attempt, seed):
    rng = random.Random(seed)
    seconds = {backoff_seconds(attempt, rng) for _ in range(10)}
    assert len(seconds) > 1
    assert 0 < min(seconds) <= max(seconds) <= MAX_SECONDS


def test_every_shared_filter_has_its_own_group():
    shared = subscriptions("g")
    assert [f for f, _ in shared] == [
        "$share/g-telemetry/rigcanary/v1/+/+/telemetry",
        "$share/g-events/rigcanary/v1/+/+/events",
        "rigcanary/v1/+/+/status",
    ]
    assert subscriptions("")[0] == ("rigcanary/v1/+/+/telemetry", 1)


def test_settings_share_by_profile_and_refuse_nonsense():
    assert BridgeSettings().share_in_force == "rigcanary-bridge"
    assert BridgeSettings(profile="embedded").share_in_force == ""
    assert BridgeSettings(profile="embedded", share="g").share_in_force == "g"
    assert BridgeSettings(share="").share_in_force == ""
    for wrong in (
        {"mqtt": "host"}, {"mqtt": "h:70000"}, {"kafka": "a:1,b"}, {"share": "a/b"}, {"x": 1},
        {"mqtt_cert_file": "a"}, {"kafka_security": "sasl_ssl"}, {"linger_ms": -1},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            BridgeSettings.model_validate(wrong)
