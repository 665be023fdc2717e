"""Fleet data sets (contracts section 4): a folder of telemetry and outcomes → minute rows.

Telemetry is read in batches and parted by device onto the disk, so that a set larger than
memory works; each part is then reduced with the statistics of the stream's minute rows.
"""

import hashlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv

from contract.errors import ConfigError
from contract.minute import COLUMNS, MINUTE_MS
from contract.signals import SIGNAL_NAMES, STATES
from models.reduce import reduce_samples
from models.windows import DeviceMinutes, Outcome

BATCH_ROWS: Final = 262_144
PART_ROWS: Final = 3_000_000
"""Samples that are reduced at once; at 16 signals some 0.4 GB."""
_CSV_BYTES_A_ROW: Final = 90
_MAX_PARTS: Final = 512
_TEXT: Final = ("ts", "site", "node", "device", "state")
_STATE_CODE: Final = {state: code for code, state in enumerate(STATES)}
_SAMPLE: Final = np.dtype(
    [("device", "<i4"), ("ts", "<i8"), ("state", "u1"), ("x", "<f8", (len(SIGNAL_NAMES),))])


def to_ms(values: "pd.Series[Any]", where: str) -> npt.NDArray[np.int64]:
    """Time stamps as ms UTC: timestamps, Unix seconds, or RFC 3339 text.

    Raises:
        ConfigError: naming ``where`` when they are neither.
    """
    if isinstance(values.dtype, pd.DatetimeTZDtype) or values.dtype.kind == "M":
        stamps = pd.to_datetime(values, utc=True).to_numpy(dtype="datetime64[ms]")
        if np.isnat(stamps).any():
            raise ConfigError(f"{where}: a time stamp is missing")
        return np.asarray(stamps.astype(np.int64))
    seconds = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    ms = np.rint(np.nan_to_num(seconds) * 1000)
    text = np.isnan(seconds)
    if text.any():
        stamps = pd.to_datetime(
            values[text].astype(str), utc=True, format="ISO8601", errors="coerce"
        ).to_numpy(dtype="datetime64[ms]")
        if np.isnat(stamps).any():
            bad = values[text][np.isnat(stamps)].iloc[0]
            raise ConfigError(
                f"{where}: {bad!r} is no time stamp; write RFC 3339 or Unix seconds")
        ms[text] = stamps.astype(np.int64)
    if not (np.abs(ms) < 1e14).all():
        raise ConfigError(f"{where}: time stamps must be Unix seconds or RFC 3339")
    return np.asarray(ms, dtype=np.int64)


def read_outcomes(folder: Path) -> dict[str, Outcome]:
    """Outcomes by device from ``failures.csv`` and ``moves.csv``; the earliest of each counts.

    Raises:
        ConfigError: when failures.csv is missing, or a file lacks a column.
    """
    path = folder / "failures.csv"
    if not path.is_file():
        raise ConfigError(f"{path} is missing; write one with the header device,failed_at,kind")
    failures = _read_table(path, ("device", "failed_at"))
    kinds = failures["kind"] if "kind" in failures else pd.Series("", index=failures.index)
    outcomes: dict[str, Outcome] = {}
    rows = zip(failures["device"], to_ms(failures["failed_at"], str(path)), kinds, strict=True)
    for device, failed_ms, kind in sorted(rows, key=lambda row: row[1]):
        outcomes.setdefault(device, Outcome(failed_ms=int(failed_ms), kind=kind))
    path = folder / "moves.csv"
    if path.is_file():
        moves = _read_table(path, ("device", "moved_at"))
        moved = sorted(zip(to_ms(moves["moved_at"], str(path)), moves["device"], strict=True),
                       reverse=True)
        for moved_ms, device in moved:
            old = outcomes.get(device, Outcome())
            outcomes[device] = Outcome(old.failed_ms, old.kind, int(moved_ms))
    return outcomes


def _read_table(path: Path, required: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    for column in required:
        if column not in table:
            raise ConfigError(f"{path}: the column {column} is missing")
    return table


class Fleet:
    """One or several fleet data sets, read device by device; use it as a context manager.

    Raises:
        ConfigError: when a folder or one of its files is not what contracts section 4 says.
    """

    def __init__(self, *folders: str | Path) -> None:
        self.folders = tuple(Path(folder) for folder in folders)
        self.outcomes: dict[str, Outcome] = {}
        self.minutes_files: list[Path] = []
        self.telemetry_files: list[Path] = []
        for folder in self.folders:
            if not folder.is_dir():
                raise ConfigError(f"data set {folder}: no such folder")
            self.outcomes |= read_outcomes(folder)
            minutes = _files(folder, "minutes", ("parquet",))
            telemetry = [] if minutes else _files(folder, "telemetry", ("parquet", "csv"))
            if not minutes and not telemetry:
                raise ConfigError(
                    f"data set {folder}: neither telemetry.parquet, telemetry.csv, telemetry/ "
                    "nor minutes.parquet is there")
            self.minutes_files += minutes
            self.telemetry_files += telemetry
        self._temporary = tempfile.TemporaryDirectory(prefix="rigcanary-")
        self._parts: list[Path] | None = None
        self._devices: dict[str, int] = {}
        self._nodes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._temporary.cleanup()

    def content_hash(self) -> str:
        """Sixteen hexadecimal digits over the files that were read."""
        digest = hashlib.sha256()
        names = [f / name for f in self.folders for name in ("failures.csv", "moves.csv")]
        for path in (*names, *self.minutes_files, *self.telemetry_files):
            if path.is_file():
                digest.update(path.name.encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
        return digest.hexdigest()[:16]

    def devices(self) -> Iterator[DeviceMinutes]:
        """Every card that has rows before its end; the first pass reduces, later ones reread."""
        if self._parts is None:
            self._parts = [*self._part_minutes(), *self._part_telemetry()]
        names = list(self._devices)
        for path in self._parts:
            with np.load(path) as part:
                device, minute, rows = part["device"], part["minute"], part["rows"]
            starts = np.flatnonzero(np.r_[True, device[1:] != device[:-1]][: len(device)])
            for begin, end in zip(starts, np.r_[starts[1:], len(device)], strict=True):
                code = int(device[begin])
                outcome = self.outcomes.get(names[code], Outcome())
                keep = _before_end(minute[begin:end], outcome)
                if keep.any():
                    yield DeviceMinutes(names[code], self._nodes[code], minute[begin:end][keep],
                                        rows[begin:end][keep], outcome)

    # -- telemetry ------------------------------------------------------------------------

    def _part_telemetry(self) -> Iterator[Path]:
        rows = sum(_row_estimate(path) for path in self.telemetry_files)
        parts = min(max(1, math.ceil(rows / PART_ROWS)), _MAX_PARTS)
        root = Path(self._temporary.name)
        spilled = [root / f"samples-{i:03d}" for i in range(parts)]
        for path in self.telemetry_files:
            for frame in _batches(path):
                samples = self._samples(frame, path)
                for i in range(parts):
                    mine = samples if parts == 1 else samples[samples["device"] % parts == i]
                    if len(mine):
                        with spilled[i].open("ab") as file:
                            mine.tofile(file)
        for i, path in enumerate(spilled):
            if not path.is_file():
                continue
            samples = np.fromfile(path, dtype=_SAMPLE)
            path.unlink()
            table = reduce_samples(samples["device"], samples["ts"], samples["state"],
                                   samples["x"])
            del samples
            yield _save(root / f"minutes-{i:03d}.npz", table.device_M, table.minute_M,
                        table.rows_MC.astype(np.float32))

    def _codes(self, frame: pd.DataFrame) -> npt.NDArray[np.int64]:
        codes, names = pd.factorize(frame["device"].astype(str))
        first = np.unique(codes, return_index=True)[1]
        nodes = [
            "/".join(str(frame[c].iloc[i]) for c in ("site", "node") if c in frame) for i in first
        ]
        for name, node in zip(names, nodes, strict=True):
            if name not in self._devices:
                self._devices[name] = len(self._devices)
                self._nodes.append(node)
        own = np.array([self._devices[name] for name in names], dtype=np.int64)
        return own[codes]

    def _samples(self, frame: pd.DataFrame, path: Path) -> npt.NDArray[Any]:
        samples = np.zeros(len(frame), dtype=_SAMPLE)
        samples["device"] = self._codes(frame)
        samples["ts"] = to_ms(frame["ts"], str(path))
        if "state" in frame:
            state = frame["state"].astype(object).where(frame["state"].notna(), "ok")
            codes, names = pd.factorize(state)
            own = np.array([_STATE_CODE.get(n, _STATE_CODE["unknown"]) if n else 0 for n in names],
                           dtype=np.uint8)
            samples["state"] = own[codes]
        for s, name in enumerate(SIGNAL_NAMES):
            samples["x"][:, s] = frame[name].to_numpy(np.float64) if name in frame else np.nan
        return samples

    # -- minute rows ----------------------------------------------------------------------

    def _part_minutes(self) -> Iterator[Path]:
        """One part: minute rows are a twelfth of the telemetry or less."""
        device, minute, rows = [], [], []
        for path in self.minutes_files:
            time = _time_column(path)
            for batch in _parquet(path).iter_batches(BATCH_ROWS):
                frame = batch.to_pandas()
                device.append(self._codes(frame))
                minute.append(to_ms(frame[time], str(path)) // MINUTE_MS)
                values = np.full((len(frame), len(COLUMNS)), np.nan, dtype=np.float32)
                for c, name in enumerate(COLUMNS):
                    if name in frame:
                        values[:, c] = pd.to_numeric(frame[name]).to_numpy(np.float32)
                rows.append(values)
        if not device:
            return
        devices, minutes = np.concatenate(device), np.concatenate(minute)
        # A minute may have been published again: the last one wins.
        order = np.lexsort((np.arange(len(devices)), minutes, devices))
        devices, minutes = devices[order], minutes[order]
        last = np.r_[(devices[1:] != devices[:-1]) | (minutes[1:] != minutes[:-1]), True]
        keep = last[: len(devices)]
        yield _save(Path(self._temporary.name) / "rows.npz", devices[keep], minutes[keep],
                    np.concatenate(rows)[order[keep]])


def _save(path: Path, device: Any, minute: Any, rows: Any) -> Path:
    np.savez(path, device=device, minute=minute, rows=rows)
    return path


def _before_end(minute: npt.NDArray[np.int64], outcome: Outcome) -> npt.NDArray[np.bool_]:
    end = (minute + 1) * MINUTE_MS
    keep = np.ones(len(minute), dtype=np.bool_)
    if outcome.failed_ms is not None:
        keep &= end < outcome.failed_ms
    if outcome.moved_ms is not None:
        keep &= end <= outcome.moved_ms
    return keep


def _files(folder: Path, stem: str, endings: tuple[str, ...]) -> list[Path]:
    own = [folder / f"{stem}.{ending}" for ending in endings]
    found = [path for path in own if path.is_file()]
    if found:
        return found[:1]
    inside = folder / stem
    return sorted(p for e in endings for p in inside.glob(f"*.{e}")) if inside.is_dir() else []


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot read it as Parquet: {error}") from error


def _row_estimate(path: Path) -> int:
    if path.suffix == ".parquet":
        return int(_parquet(path).metadata.num_rows)
    return path.stat().st_size // _CSV_BYTES_A_ROW


def _time_column(path: Path) -> str:
    names = _parquet(path).schema_arrow.names
    for name in ("minute", "ts"):
        if name in names and "device" in names and "samples" in names:
            return name
    raise ConfigError(f"{path}: minute rows need the columns minute (or ts), device and samples")


def _batches(path: Path) -> Iterator[pd.DataFrame]:
    """Frames of the telemetry's known columns, sensors as numbers."""
    known = (*_TEXT, *SIGNAL_NAMES)
    try:
        if path.suffix == ".parquet":
            file = _parquet(path)
            names = file.schema_arrow.names
            _require(names, path)
            wanted = [name for name in known if name in names]
            batches: Any = file.iter_batches(BATCH_ROWS, columns=wanted)
        else:
            batches = _csv_reader(path, known)
        for batch in batches:
            yield batch.to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error


def _csv_reader(path: Path, known: tuple[str, ...]) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        names = [name.strip().strip('"') for name in file.readline().rstrip("\r\n").split(",")]
    _require(names, path)
    types: dict[str, pa.DataType] = {name: pa.string() for name in _TEXT}
    types.update({name: pa.float64() for name in SIGNAL_NAMES})
    return pa_csv.open_csv(
        path, read_options=pa_csv.ReadOptions(block_size=16 << 20),
        convert_options=pa_csv.ConvertOptions(
            include_columns=[name for name in known if name in names],
            column_types={name: t for name, t in types.items() if name in names}))


def _require(names: list[str], path: Path) -> None:
    for name in ("ts", "device"):
        if name not in names:
            raise ConfigError(f"{path}: the column {name} is missing")
