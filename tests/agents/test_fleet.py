"""Reading a data set: any order, any size, any spelling of time; bad input named."""

import csv
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.fleet.files import sensor_columns, telemetry_files
from agents.fleet.ordered import ordered_tables, survey
from agents.fleet.ticks import RecordedTick, ticks
from contract.errors import ConfigError
from contract.signals import SIGNAL_NAMES

T0 = 1_767_225_600
Row = tuple[float, str, str, float | None]


def write_parquet(path: Path, rows: list[Row], row_group: int = 50) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ts, node, device, celsius = zip(*rows, strict=True) if rows else ((), (), (), ())
    table = pa.table(
        {
            "ts": pa.array([round(t * 1000) for t in ts], pa.timestamp("ms", "UTC")),
            "node": pa.array(node, pa.string()),
            "device": pa.array(device, pa.string()),
            "temperature_celsius": pa.array(celsius, pa.float64()),
        }
    )
    pq.write_table(table, path, row_group_size=row_group)


def replayed(dataset: Path, chunk_rows: int = 250_000) -> list[RecordedTick]:
    files = telemetry_files(dataset)
    sensors = sensor_columns(files)
    return list(ticks(ordered_tables(files, sensors, survey(files), chunk_rows), sensors))


def as_rows(found: list[RecordedTick]) -> list[Row]:
    return [
        (tick.ts, tick.node[1], d["device"], d["temperature_celsius"])
        for tick in found
        for d in tick.devices
    ]


def fleet_rows(nodes: int, devices: int, minutes: int, step: float = 5.0) -> list[Row]:
    return [
        (T0 + i * step, f"rig{n:03d}", f"GPU-{n}-{d}", 50.0 + d + i / 10)
        for i in range(int(minutes * 60 / step))
        for n in range(nodes)
        for d in range(devices)
    ]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 400).map(lambda s: float(T0 + s)),
        st.sampled_from(["rig1", "rig2"]),
        st.sampled_from(["a", "b", "c"]),
        st.one_of(st.none(), st.floats(0, 100)),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, chunk_rows=st.integers(1, 40), parts=st.integers(1, 3))
def test_each_row_once_in_order_of_time_whatever_the_order_and_the_chunk(
    tmp_path_factory: Any, rows: list[Row], chunk_rows: int, parts: int
) -> None:
    dataset = tmp_path_factory.mktemp("fleet")
    for i in range(parts):
        write_parquet(dataset / "telemetry" / f"{i}.parquet", rows[i::parts], row_group=7)
    found = replayed(dataset, chunk_rows)
    key: Callable[[Row], Any] = lambda r: (*r[:3], -1 if r[3] is None else r[3])  # noqa: E731
    assert sorted(as_rows(found), key=key) == sorted(rows, key=key)
    assert [t.ts for t in found] == sorted(t.ts for t in found)
    for tick in found:
        names = [d["device"] for d in tick.devices]
        assert names == sorted(set(names))


def test_a_shuffled_set_in_small_chunks_equals_the_ordered_one(tmp_path: Path) -> None:
    rows = fleet_rows(nodes=3, devices=4, minutes=20)
    write_parquet(tmp_path / "ordered" / "telemetry.parquet", rows)
    random.Random(1).shuffle(rows)
    write_parquet(tmp_path / "shuffled" / "telemetry.parquet", rows)
    assert survey(telemetry_files(tmp_path / "ordered")).in_order
    assert not survey(telemetry_files(tmp_path / "shuffled")).in_order
    assert replayed(tmp_path / "ordered") == replayed(tmp_path / "shuffled", chunk_rows=200)


def test_one_tick_a_node_and_instant_with_rate_interval_and_null_sensors(tmp_path: Path) -> None:
    write_parquet(tmp_path / "telemetry.parquet", fleet_rows(nodes=2, devices=3, minutes=1))
    found = replayed(tmp_path)
    assert len(found) == 24
    assert {tick.interval_seconds for tick in found} == {5.0}
    first, second = (
        tick.devices[0] for tick in found if tick.node[1] == "rig000" and tick.ts < T0 + 10
    )
    assert set(SIGNAL_NAMES) <= set(first)
    assert first["fan_speed_rpm"] is None
    assert first["temperature_rate_celsius_per_second"] is None
    assert second["temperature_rate_celsius_per_second"] == pytest.approx(0.02)
    assert [d["index"] for d in found[-1].devices] == [0, 1, 2]


def test_a_device_that_stands_twice_goes_into_two_messages(tmp_path: Path) -> None:
    rows: list[Row] = [(T0, "rig1", "a", 1.0), (T0, "rig1", "a", 2.0), (T0, "rig1", "b", 3.0)]
    write_parquet(tmp_path / "telemetry.parquet", rows)
    assert [[d["device"] for d in t.devices] for t in replayed(tmp_path)] == [["a"], ["a", "b"]]


def test_more_devices_than_a_message_may_hold(tmp_path: Path) -> None:
    rows: list[Row] = [(T0, "rig1", f"d{i:04d}", 1.0) for i in range(600)]
    write_parquet(tmp_path / "telemetry.parquet", rows)
    assert [len(t.devices) for t in replayed(tmp_path)] == [256, 256, 88]


def write_csv(path: Path, header: str, *lines: str) -> None:
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "times",
    [
        (str(T0), f"{T0 + 5}.5"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:05.5Z"),
        ("2026-01-01T01:00:00+01:00", "2026-01-01T01:00:05.500+01:00"),
        ("2026-01-01 00:00:00", "2026-01-01 00:00:05.5"),
    ],
)
def test_csv_times(tmp_path: Path, times: tuple[str, str]) -> None:
    write_csv(
        tmp_path / "telemetry.csv",
        "note,ts,node,device,state,temperature_celsius,fan_duty_ratio",
        f'"a, b",{times[0]},rig1,a,,60,',
        f",{times[1]},rig1,a,lost,NaN,nan",
    )
    first, second = replayed(tmp_path)
    assert (first.ts, second.ts) == (T0, T0 + 5.5)
    assert first.devices[0]["temperature_celsius"] == 60.0
    assert first.devices[0]["fan_duty_ratio"] is None
    assert second.devices[0] == {"device": "a", "index": 0, "state": "lost"}
    assert second.events == [("a", "device_lost", "the driver lost the device, or it vanished")]


def test_parquet_with_unix_seconds_and_dictionaries(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ts": [float(T0), T0 + 5.25],
            "node": pa.array(["rig1", "rig1"]).dictionary_encode(),
            "device": pa.array(["a", "a"]).dictionary_encode(),
            "ecc_corrected_total": pa.array([1, 2], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "telemetry.parquet")
    found = replayed(tmp_path)
    assert [t.ts for t in found] == [T0, T0 + 5.25]
    assert [t.devices[0]["ecc_corrected_total"] for t in found] == [1.0, 2.0]


BAD = {
    "ts,node,device\n": "there are no rows",
    "ts,node\n1767225600,rig1\n": "column 'device' is missing",
    "ts,node,device\nyesterday,rig1,a\n": "column 'ts'",
    "ts,node,device\n,rig1,a\n": "column 'ts' is empty",
    "ts,node,device\n12,rig1,a\n": "no time of this century",
    "ts,node,device\n1767225600,,a\n": "column 'node' is empty",
    "ts,node,device\n1767225600,rig/1,a\n": "column 'node' holds 'rig/1'",
    "ts,node,device,power_watts\n1767225600,rig1,a,much\n": "column 'power_watts'",
    "note,ts,node,device,power_watts\n,1767225600,rig1,a,much\n": "column 'power_watts'",
    "ts,node,device\n1767225600,rig1\n": "Expected 3 columns",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_names_the_file_and_the_column(tmp_path: Path, text: str) -> None:
    path = tmp_path / "telemetry.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        replayed(tmp_path)
    assert str(path) in str(caught.value)
    assert BAD[text] in str(caught.value)


def test_a_folder_that_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no fleet data set"):
        replayed(tmp_path)
    (tmp_path / "telemetry.parquet").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"telemetry\.parquet: not a Parquet file"):
        replayed(tmp_path)


def test_a_wrong_type_in_parquet_is_named(tmp_path: Path) -> None:
    table = pa.table({"ts": [T0], "node": ["r"], "device": ["a"], "power_watts": ["much"]})
    pq.write_table(table, tmp_path / "telemetry.parquet")
    with pytest.raises(ConfigError, match="column 'power_watts'"):
        replayed(tmp_path)


def test_csv_and_parquet_agree(tmp_path: Path) -> None:
    rows = fleet_rows(nodes=2, devices=2, minutes=2)
    (tmp_path / "csv").mkdir()
    with (tmp_path / "csv" / "telemetry.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ts", "node", "device", "temperature_celsius"])
        for ts, *rest in rows:
            writer.writerow([datetime.fromtimestamp(ts, UTC).isoformat(), *rest])
    write_parquet(tmp_path / "parquet" / "telemetry.parquet", rows)
    assert replayed(tmp_path / "csv") == replayed(tmp_path / "parquet")
