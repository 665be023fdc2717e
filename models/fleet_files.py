"""The files of a fleet data set (contracts section 4), read in batches.

Foreign readers' errors become :class:`contract.errors.ConfigError` here, naming the file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv

from contract.errors import ConfigError
from contract.signals import SIGNAL_NAMES
from models.windows import Outcome

BATCH_ROWS: Final = 262_144
_CSV_BYTES_A_ROW: Final = 90
_TEXT: Final = ("ts", "site", "node", "device", "state")


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
            raise ConfigError(f"{where}: {bad!r} is no time stamp; write RFC 3339 or Unix seconds")
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
        moved = sorted(
            zip(to_ms(moves["moved_at"], str(path)), moves["device"], strict=True), reverse=True
        )
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


def find_files(folder: Path, stem: str, endings: tuple[str, ...]) -> list[Path]:
    """``STEM.ENDING`` of the folder, or else all files of such an ending in ``STEM/``."""
    own = [folder / f"{stem}.{ending}" for ending in endings]
    found = [path for path in own if path.is_file()]
    if found:
        return found[:1]
    inside = folder / stem
    return sorted(p for e in endings for p in inside.glob(f"*.{e}")) if inside.is_dir() else []


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, opened; raises ``ConfigError`` when it is not Parquet."""
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot read it as Parquet: {error}") from error


def row_estimate(path: Path) -> int:
    """About how many rows a telemetry file holds."""
    if path.suffix == ".parquet":
        return int(open_parquet(path).metadata.num_rows)
    return path.stat().st_size // _CSV_BYTES_A_ROW


def time_column(path: Path) -> str:
    """Name of the column that says which minute a row of minute rows is."""
    names = open_parquet(path).schema_arrow.names
    for name in ("minute", "ts"):
        if name in names and "device" in names and "samples" in names:
            return name
    raise ConfigError(f"{path}: minute rows need the columns minute (or ts), device and samples")


def batches(path: Path) -> Iterator[pd.DataFrame]:
    """Frames of the telemetry's known columns, sensors as numbers."""
    known = (*_TEXT, *SIGNAL_NAMES)
    try:
        if path.suffix == ".parquet":
            file = open_parquet(path)
            names = file.schema_arrow.names
            _require(names, path)
            wanted = [name for name in known if name in names]
            parts: Any = file.iter_batches(BATCH_ROWS, columns=wanted)
        else:
            parts = _csv_reader(path, known)
        for batch in parts:
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
        path,
        read_options=pa_csv.ReadOptions(block_size=16 << 20),
        convert_options=pa_csv.ConvertOptions(
            include_columns=[name for name in known if name in names],
            column_types={name: t for name, t in types.items() if name in names},
        ),
    )


def _require(names: list[str], path: Path) -> None:
    for name in ("ts", "device"):
        if name not in names:
            raise ConfigError(f"{path}: the column {name} is missing")
