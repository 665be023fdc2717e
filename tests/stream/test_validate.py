"""Bad input: impossible single values become null and are counted, the rest flows on."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import START_MS, message

from contract.deadletter import REASONS
from contract.errors import UnusableMessage
from contract.message import loads
from contract.signals import SIGNAL_NAMES, SIGNALS
from stream.validate import STATE_UNKNOWN, decode


def one(value: Any, signal: str = "temperature_celsius") -> tuple[float, "Counter[str]"]:
    repairs: Counter[str] = Counter()
    found = decode(message(0, START_MS, {"GPU-a": {signal: value}}), START_MS, repairs)
    return float(found.x_DS[0, SIGNAL_NAMES.index(signal)]), repairs


@pytest.mark.parametrize(
    "value",
    [9223372036854775794, 65536.0, -273.15, 151, "45.2", True, [1], {"a": 1}, 1.7e300, 2**63],
)
def test_an_impossible_value_becomes_null_and_is_counted(value: Any) -> None:
    found, repairs = one(value)
    assert math.isnan(found)
    assert repairs == {"temperature_celsius": 1}


@pytest.mark.parametrize("value", [0, 0.0, -20, 150, 63])
def test_a_plausible_value_stays_idle_zero_included(value: float) -> None:
    assert one(value) == (value, {})


def test_a_missing_sensor_is_null_and_no_repair() -> None:
    found, repairs = one(None)
    assert math.isnan(found)
    assert not repairs


def test_a_hung_blackhole_board_gives_nulls_only() -> None:
    hung = {
        "temperature_celsius": 65536.0,
        "fan_speed_rpm": 4294967295,
        "vrm_voltage_volts": 4.29e6,
        "power_watts": 4290.0,
        "state": "unresponsive",
    }
    repairs: Counter[str] = Counter()
    found = decode(message(0, START_MS, {"GPU-a": hung}), START_MS, repairs)
    assert np.isnan(found.x_DS).all()
    assert sum(repairs.values()) == 4


def test_a_state_nobody_knows_is_unknown() -> None:
    found = decode(message(0, START_MS, {"GPU-a": {"state": 7}}), START_MS, Counter())
    assert found.state_D.tolist() == [STATE_UNKNOWN]


def test_nan_and_infinity_as_python_writes_them_are_null() -> None:
    text = b'{"a": NaN, "b": Infinity, "c": 1e999, "d": 1, "e": 123456789012345678901}'
    assert loads(text) == {"a": None, "b": None, "c": None, "d": 1, "e": 123456789012345678901.0}


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": nan}'])
def test_what_is_not_json_is_unusable(text: bytes) -> None:
    with pytest.raises(UnusableMessage) as caught:
        loads(text)
    assert caught.value.reason == "not-json"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "rigcanary.telemetry/2"}, "schema"),
        ({"site": "a/b"}, "bad-value"),
        ({"node": ""}, "bad-value"),
        ({"seq": -1}, "bad-value"),
        ({"seq": 1.5}, "bad-value"),
        ({"ts": "now"}, "bad-value"),
        ({"ts": 0}, "bad-value"),
        ({"ts": START_MS / 1000 + 301}, "future"),
        ({"devices": {}}, "bad-value"),
        ({"devices": [1]}, "bad-value"),
        ({"devices": [{}]}, "missing-key"),
        ({"devices": [{"device": "a"}, {"device": "a"}]}, "bad-value"),
        ({"devices": [{"device": "a"}] * 300}, "bad-value"),
    ],
)
def test_an_unusable_message_says_why(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableMessage) as caught:
        decode(message(0, START_MS, {}) | change, START_MS, Counter())
    assert caught.value.reason == reason


@pytest.mark.parametrize("key", ["site", "node", "boot_id", "seq", "ts", "devices"])
def test_every_required_key_is_required(key: str) -> None:
    broken = message(0, START_MS, {})
    del broken[key]
    with pytest.raises(UnusableMessage) as caught:
        decode(broken, START_MS, Counter())
    assert caught.value.reason == "missing-key"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*SIGNAL_NAMES, "state", "methods", "index"]), JSON))
def test_any_json_in_a_device_gives_plausible_values_or_null(device: dict[str, Any]) -> None:
    found = decode(message(0, START_MS, {"GPU-a": device}), START_MS, Counter())
    for signal, value in zip(SIGNALS, found.x_DS[0], strict=True):
        assert math.isnan(value) or signal.low <= value <= signal.high


@given(JSON)
def test_any_json_is_used_or_refused(value: Any) -> None:
    # Only a whole message passes, and this is none; nothing but UnusableMessage may come out.
    with pytest.raises(UnusableMessage) as caught:
        decode(value, START_MS, Counter())
    assert caught.value.reason in REASONS
