"""SKAB (Skoltech Anomaly Benchmark, a water pump testbed) → a fleet data set.

The pump stands in for a card, so that a real machine's measurements go through the whole path:

| SKAB column | becomes | rule |
|---|---|---|
| Temperature (°C, motor body) | ``temperature_celsius`` | as it is |
| Thermocouple (°C, fluid) | ``ambient_celsius`` | as it is |
| Voltage (V, mains) | ``vrm_voltage_volts`` | × 12 / 230: the nominal mains on a 12 V rail |
| Current (A) × Voltage (V) | ``power_watts`` | apparent power; SKAB has no power factor |
| Accelerometer1RMS, …2RMS (g) | ``fan_vibration_g`` | the stronger of the two places |
| Pressure, Volume Flow RateRMS | – | a card has nothing like them |

Every other sensor is absent. ``valve1``, ``valve2`` and ``anomaly-free`` are one device each, as
their files follow one another by the clock; each file of ``other`` is a device of its own, as
those overlap. Each device stands in a node of its own. SKAB's clock names no zone and is read as
UTC. Its labels say when a fault was induced, not when a machine failed: they go to
``labels.csv`` (``device,from,to``, half-open), and ``failures.csv`` holds its header only.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from contract.errors import ConfigError
from contract.signals import BY_NAME

GROUPS: Final = ("anomaly-free", "other", "valve1", "valve2")
MAINS_VOLTS: Final = 230.0
RAIL_VOLTS: Final = 12.0
NEEDED: Final = (
    "datetime", "Accelerometer1RMS", "Accelerometer2RMS", "Current", "Temperature",
    "Thermocouple", "Voltage",
)  # fmt: skip
GAP_MS: Final = 2_000
"""A step longer than this counts as a gap: SKAB samples at 1 Hz and skips single seconds."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Converted:
    """What went in and came out. ``implausible`` counts values outside the signal's range."""

    files: int = 0
    devices: int = 0
    rows_in: int = 0
    samples_out: int = 0
    duplicate_timestamps: int = 0
    gaps: int = 0
    longest_gap_seconds: float = 0.0
    labelled_rows: int = 0
    labels: int = 0
    implausible: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Recording:
    """Rows of one device in the order of time; ``anomaly`` is the fault label."""

    device: str
    ts_ms: Ints
    sensors: dict[str, Floats]
    anomaly: npt.NDArray[np.bool_]


def convert(source: Path, out: Path) -> Converted:
    """Write the fleet data set ``out`` from a copy of SKAB; every row becomes one sample.

    Raises:
        ConfigError: ``source`` is no SKAB folder, a file is damaged, or ``out`` is not empty.
    """
    data = source / "data" if (source / "data").is_dir() else source
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; name a new folder")
    report = Converted()
    recordings = list(_recordings(data, report))
    if not recordings:
        raise ConfigError(
            f"{source} holds no SKAB data; it needs data/ with the folders {', '.join(GROUPS)}"
        )
    out.mkdir(parents=True, exist_ok=True)
    table = pa.concat_tables(_table(recording) for recording in recordings)
    table = table.sort_by([("ts", "ascending"), ("device", "ascending")])
    pq.write_table(table, out / "telemetry.parquet")
    report.samples_out = table.num_rows
    report.devices = len(recordings)
    for recording in recordings:
        _inspect(recording, report)
    labels = [label for recording in recordings for label in _labels(recording)]
    report.labels = len(labels)
    _write_csv(out / "labels.csv", ["device", "from", "to"], labels)
    _write_csv(out / "failures.csv", ["device", "failed_at", "kind"], [])
    return report


def _recordings(data: Path, report: Converted) -> Iterator[_Recording]:
    for group in GROUPS:
        parts: list[tuple[str, Any]] = []
        for path in sorted((data / group).glob("*.csv")):
            table = _read(path)
            report.files += 1
            report.rows_in += table.num_rows
            parts.append((path.stem, table))
        if group == "other":
            for stem, table in parts:
                yield _recording(f"skab-other-{stem.zfill(2)}", table)
        elif parts:
            whole = pa.concat_tables((table for _, table in parts), promote_options="default")
            yield _recording(f"skab-{group}", whole)


def _read(path: Path) -> Any:
    try:
        table = pacsv.read_csv(
            path,
            parse_options=pacsv.ParseOptions(delimiter=";"),
            convert_options=pacsv.ConvertOptions(
                column_types={
                    "datetime": pa.timestamp("ms"),
                    **dict.fromkeys([*NEEDED[1:], "anomaly"], pa.float64()),
                }
            ),
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for name in NEEDED:
        if name not in table.schema.names:
            raise ConfigError(f"{path}: column {name!r} is missing")
    if table["datetime"].null_count:
        raise ConfigError(f"{path}: column 'datetime' is empty in some rows")
    return table


def _recording(device: str, table: Any) -> _Recording:
    table = table.sort_by("datetime")
    ts_ms = table["datetime"].cast(pa.int64()).to_numpy()
    column: dict[str, Floats] = {name: _floats(table[name]) for name in NEEDED[1:]}
    has_labels = "anomaly" in table.schema.names
    anomaly = _floats(table["anomaly"]) > 0 if has_labels else np.zeros(len(ts_ms), bool)
    sensors = {
        "temperature_celsius": column["Temperature"],
        "ambient_celsius": column["Thermocouple"],
        "vrm_voltage_volts": column["Voltage"] * (RAIL_VOLTS / MAINS_VOLTS),
        "power_watts": column["Current"] * column["Voltage"],
        "fan_vibration_g": np.fmax(column["Accelerometer1RMS"], column["Accelerometer2RMS"]),
    }
    return _Recording(device, ts_ms, sensors, anomaly)


def _floats(column: Any) -> Floats:
    values: Floats = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _table(recording: _Recording) -> Any:
    rows = len(recording.ts_ms)
    return pa.table(
        {
            "ts": pa.array(recording.ts_ms, pa.timestamp("ms", "UTC")),
            "site": ["skab"] * rows,
            "node": [recording.device] * rows,
            "device": [recording.device] * rows,
            "state": ["ok"] * rows,
            **{n: pa.array(v, from_pandas=True) for n, v in recording.sensors.items()},
        }
    )


def _inspect(recording: _Recording, report: Converted) -> None:
    steps = np.diff(recording.ts_ms)
    report.duplicate_timestamps += int((steps == 0).sum())
    report.gaps += int((steps > GAP_MS).sum())
    if len(steps):
        report.longest_gap_seconds = max(report.longest_gap_seconds, float(steps.max()) / 1000)
    report.labelled_rows += int(recording.anomaly.sum())
    for name, values in recording.sensors.items():
        signal = BY_NAME[name]
        outside = int(((values < signal.low) | (values > signal.high)).sum())
        if outside:
            report.implausible[name] = report.implausible.get(name, 0) + outside


def _labels(recording: _Recording) -> Iterator[tuple[str, str, str]]:
    """Runs of labelled rows; a run ends with the next row, or a second into a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], recording.anomaly, [False]])))
    for begin, end in edges.reshape(-1, 2).tolist():
        last = recording.ts_ms[end - 1]
        after = recording.ts_ms[end] if end < len(recording.ts_ms) else last + GAP_MS + 1
        if after - last > GAP_MS:
            after = last + 1000
        yield recording.device, _rfc3339(recording.ts_ms[begin]), _rfc3339(after)


def _rfc3339(ts_ms: Any) -> str:
    return datetime.fromtimestamp(int(ts_ms) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write_csv(path: Path, header: list[str], rows: list[tuple[str, str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
