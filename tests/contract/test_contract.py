"""What crosses a border: names, topics, dead letters, event messages."""

import base64

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.deadletter import REASONS, dead_letter
from contract.errors import UnusableMessage
from contract.message import check_event, check_topic_agrees
from contract.minute import COLUMN_INDEX, COLUMNS
from contract.signals import SIGNALS
from contract.times import rfc3339
from contract.topics import MqttTopic, is_name, parse_mqtt_topic

NOW_MS = 1_767_225_600_000


def event(**change: object) -> dict[str, object]:
    return {
        "schema": "rigcanary.event/1",
        "site": "lab",
        "node": "rig1",
        "boot_id": "b",
        "seq": 0,
        "ts": NOW_MS / 1000,
        "device": "GPU-a",
        "type": "xid",
        "code": 79,
        "message": "",
        "raw": "",
    } | change


def test_signals_are_unique_and_their_sums_of_squares_fit_64_bits() -> None:
    assert len({s.name for s in SIGNALS}) == len(SIGNALS)
    for signal in SIGNALS:
        if signal.kind == "gauge":
            largest = max(abs(signal.low), abs(signal.high)) * 2**signal.fraction_bits
            assert largest < 2**31, signal.name
            assert largest**2 * 1_200 < 2**63, signal.name


def test_columns_are_unique_and_indexed() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS) == len(COLUMN_INDEX)
    assert COLUMNS[COLUMN_INDEX["temperature_celsius_mean"]] == "temperature_celsius_mean"


@pytest.mark.parametrize(
    "topic",
    [
        "rigcanary/v1/lab/rig1",
        "rigcanary/v1/lab/rig1/other",
        "rigcanary/v2/lab/rig1/status",
        "rigcanary/v1//rig1/status",
        "rigcanary/v1/la b/rig1/status",
        "x",
        "",
        "rigcanary/v1/lab/rig1/telemetry/more",
        f"rigcanary/v1/{'a' * 65}/rig1/status",
    ],
)
def test_a_topic_that_is_not_ours_is_said(topic: str) -> None:
    with pytest.raises(UnusableMessage) as caught:
        parse_mqtt_topic(topic)
    assert caught.value.reason == "topic"


@given(st.text(max_size=70))
def test_names_that_pass_make_topics_that_parse(name: str) -> None:
    if is_name(name):
        topic = MqttTopic(name, name, "telemetry")
        assert parse_mqtt_topic(str(topic)) == topic


def test_a_body_that_disagrees_with_its_topic_is_unusable() -> None:
    with pytest.raises(UnusableMessage, match="body says lab/rig1"):
        check_topic_agrees(event(), MqttTopic("lab", "rig2", "events"))


def test_events_are_checked() -> None:
    assert check_event(event(), NOW_MS)["code"] == 79
    assert check_event(event(device=None), NOW_MS)["device"] is None
    for change in ({"type": "party"}, {"device": ""}, {"ts": "x"}, {"schema": "x"}):
        with pytest.raises(UnusableMessage):
            check_event(event(**change), NOW_MS)


@given(st.binary(max_size=200), st.sampled_from(sorted(REASONS)))
def test_a_dead_letter_keeps_the_bytes(payload: bytes, reason: str) -> None:
    value = orjson.loads(dead_letter(reason, "why", "rigcanary.telemetry", NOW_MS, payload))
    assert base64.b64decode(value["payload_base64"]) == payload
    assert value["received_at"] == "2026-01-01T00:00:00.000Z" == rfc3339(NOW_MS)
