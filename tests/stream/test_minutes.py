"""Minute rows: equal to the plain computation, whatever the order, merges and repetitions."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import START_MS, message, oracle, sample

from contract.minute import COLUMNS
from contract.signals import BY_NAME, SIGNALS, STATES
from stream import minutes
from stream.validate import decode

DEVICES = ("GPU-b", "GPU-a", "GPU-c")


def _value(signal: Any) -> st.SearchStrategy[Any]:
    if signal.kind == "counter":
        return st.none() | st.integers(0, 2**53)
    return st.none() | st.floats(signal.low, signal.high, allow_nan=False)


@st.composite
def minute_messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of one node and minute: devices come and go, sensors are missing, two boots."""
    chosen = draw(st.lists(st.sampled_from(SIGNALS), max_size=4, unique_by=lambda s: s.name))
    offsets = draw(st.lists(st.integers(0, 59_999), min_size=1, max_size=8, unique=True))
    found = []
    for seq, offset in enumerate(offsets):
        devices = {
            d: {"state": draw(st.sampled_from(STATES)), "index": seq}
            | {s.name: draw(_value(s)) for s in chosen}
            for d in draw(st.lists(st.sampled_from(DEVICES), max_size=3, unique=True))
        }
        boot = draw(st.sampled_from(["boot-a", "boot-b"]))
        found.append(message(seq, START_MS + offset, devices, boot_id=boot))
    return found


def reduced(messages: list[dict[str, Any]]) -> minutes.MinuteRecord:
    return minutes.reduce([decode(m, START_MS, Counter()) for m in messages])


@given(minute_messages())
def test_a_row_equals_the_plain_computation(messages: list[dict[str, Any]]) -> None:
    record = reduced(messages)
    rows_DC = minutes.rows(record)
    expected = oracle(messages)
    assert record.devices == tuple(expected)
    for device, row in zip(record.devices, rows_DC, strict=True):
        for name, value in zip(COLUMNS, row, strict=True):
            wanted = expected[device][name]
            base = name.rsplit("_", 1)[0]
            bits = BY_NAME[base].fraction_bits if base in BY_NAME else 0
            # Half a step of the fixed point, and what float64 loses on a mean of squares.
            tolerance = 2.0**-bits * (2 if name.endswith("_std") else 0.51)
            if name.endswith("_std"):
                tolerance += 1e-6 * abs(expected[device][f"{base}_max"])
            assert value == pytest.approx(wanted, abs=tolerance, nan_ok=True), (device, name)


@given(minute_messages(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_order_merge_and_repetition_gives_the_same_bytes(
    messages: list[dict[str, Any]], rng: random.Random, parts: int
) -> None:
    expected = minutes.pack(reduced(messages))
    samples = [decode(m, START_MS, Counter()) for m in messages]
    repeated = samples + rng.choices(samples, k=len(samples))
    rng.shuffle(repeated)
    record: minutes.MinuteRecord | None = None
    for part in range(parts):
        chunk = repeated[part::parts]
        merged = minutes.merge(record, chunk)
        record = merged if merged is not None else record
        if record is not None:
            record = minutes.unpack(minutes.pack(record))
    assert record is not None
    assert minutes.pack(record) == expected


def test_merging_what_a_row_holds_changes_nothing() -> None:
    first = sample(0, START_MS, {"GPU-a": {"temperature_celsius": 60}})
    record = minutes.reduce([first])
    assert minutes.merge(record, [first, first]) is None


def test_a_counter_that_falls_is_a_reset_and_never_a_negative_step() -> None:
    values = (5, 5, 0, 1)
    record = minutes.reduce(
        [
            sample(i, START_MS + i * 5000, {"GPU-a": {"ecc_uncorrected_total": v}})
            for i, v in enumerate(values)
        ]
    )
    row = dict(zip(COLUMNS, minutes.rows(record)[0], strict=True))
    assert row["ecc_uncorrected_total_increase"] == 1
    assert (row["ecc_uncorrected_total_first"], row["ecc_uncorrected_total_last"]) == (5, 1)


def test_samples_of_two_minutes_are_refused() -> None:
    both = [sample(0, START_MS, {}), sample(1, START_MS + 60_000, {})]
    with pytest.raises(ValueError, match="exactly one node and minute"):
        minutes.reduce(both)


def test_what_is_published_keeps_idle_zeros_and_says_null_for_missing_sensors() -> None:
    device = {"utilization_ratio": 0, "fan_speed_rpm": None, "model": "GTX", "index": 3}
    value = minutes.published(minutes.reduce([sample(0, START_MS, {"GPU-a": device})]))
    (row,) = value["devices"]
    assert (row["utilization_ratio_mean"], row["fan_speed_rpm_mean"]) == (0, None)
    assert (row["model"], row["index"], row["samples"]) == ("GTX", 3, 1)
    assert (value["minute"], value["messages"]) == (START_MS // 1000, 1)


def test_packed_rows_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="not a packed minute record"):
        minutes.unpack(b"nonsense")


@given(st.lists(st.integers(0, 59_999), min_size=1, max_size=50, unique=True))
def test_sums_of_the_largest_values_do_not_overflow(offsets: list[int]) -> None:
    highest = {s.name: s.high for s in SIGNALS}
    record = minutes.reduce(
        [sample(i, START_MS + o, {"GPU-a": highest}) for i, o in enumerate(offsets)]
    )
    # The bound that fraction_bits promises, at the number of messages a minute may hold.
    assert (record.square_DG // len(record.seen) * 1_200 < np.iinfo(np.int64).max).all()
    mean = dict(zip(COLUMNS, minutes.rows(record)[0], strict=True))["power_watts_mean"]
    assert mean == highest["power_watts"]
