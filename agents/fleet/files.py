"""The telemetry files of a data set → Arrow batches of one normal form, in file order."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from contract.errors import ConfigError
from contract.signals import SIGNAL_NAMES

NEEDED: Final = ("ts", "node", "device")
TEXTS: Final = ("site", "node", "device", "state", "model")
BATCH_ROWS: Final = 131_072
_CSV_BLOCK_BYTES: Final = 16 * 1024 * 1024
_NULLS: Final = ["", "NaN", "nan", "null", "NULL", "NA", "None"]
_FIRST_MS: Final = 946_684_800_000  # 2000-01-01, as contract.message asks of a time stamp
_LAST_MS: Final = 100_000_000_000_000


@dataclass(frozen=True, slots=True)
class TelemetryFile:
    """One file and which of our columns it has."""

    path: Path
    columns: tuple[str, ...]


def telemetry_files(dataset: Path) -> list[TelemetryFile]:
    """The telemetry files of ``dataset``, in the order of their names.

    Raises:
        ConfigError: there are none, or a file lacks a column that is needed.
    """
    candidates = [dataset / "telemetry.parquet", dataset / "telemetry.csv", dataset / "telemetry"]
    found = [path for path in candidates if path.exists()]
    if not found:
        hint = ""
        if (dataset / "minutes.parquet").exists():
            hint = "; minutes.parquet holds minute rows, which cannot be sent again"
        raise ConfigError(
            f"{dataset} is no fleet data set: it has no telemetry.parquet, telemetry.csv or "
            f"telemetry/{hint}"
        )
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise ConfigError(f"{dataset} has {names}; keep the one that is meant")
    paths = found
    if found[0].is_dir():
        paths = sorted(p for p in found[0].rglob("*") if p.suffix in (".parquet", ".csv"))
        if not paths:
            raise ConfigError(f"{found[0]} holds no .parquet or .csv file")
    return [_look(path) for path in paths]


def _look(path: Path) -> TelemetryFile:
    if path.suffix == ".parquet":
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{path}: not a Parquet file: {error}") from error
    else:
        names = _header(path)
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise ConfigError(f"{path}: column {missing[0]!r} is missing; it has {', '.join(names)}")
    ours = {"ts", *TEXTS, *SIGNAL_NAMES}
    return TelemetryFile(path, tuple(name for name in names if name in ours))


def _header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return next(csv.reader(lines), [])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error


def sensor_columns(files: Sequence[TelemetryFile]) -> tuple[str, ...]:
    """The sensors that at least one file has, in the order of the vocabulary."""
    present = {name for file in files for name in file.columns}
    return tuple(name for name in SIGNAL_NAMES if name in present)


def normal_schema(sensors: Sequence[str]) -> pa.Schema:
    """``ts_ms`` (Unix milliseconds UTC), the texts, ``sensors`` as float64 in base units."""
    return pa.schema(
        [
            ("ts_ms", pa.int64()),
            *((name, pa.string()) for name in TEXTS),
            *((name, pa.float64()) for name in sensors),
        ]
    )


def batches(
    files: Sequence[TelemetryFile], sensors: Sequence[str] = (), texts: Sequence[str] = TEXTS
) -> Iterator[pa.Table]:
    """Every row of ``files`` in batches of :func:`normal_schema`; absent columns are null.

    Raises:
        ConfigError: naming the file and the column whose values cannot be used.
    """
    for file in files:
        columns = [c for c in file.columns if c == "ts" or c in texts or c in sensors]
        parquet = file.path.suffix == ".parquet"
        reader = _parquet(file.path, columns) if parquet else _csv(file.path, columns)
        for batch in reader:
            yield _normal(file.path, batch, sensors)


def _parquet(path: Path, columns: list[str]) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _csv(path: Path, columns: list[str]) -> Iterator[Any]:
    texts = ("ts", *TEXTS)
    types = {name: pa.string() if name in texts else pa.float64() for name in columns}
    try:
        with pacsv.open_csv(
            path,
            read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=columns,
                null_values=_NULLS,
                strings_can_be_null=True,
            ),
        ) as reader:
            yield from reader
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path}: {_named_column(str(error), _header(path))}") from error


def _named_column(message: str, header: list[str]) -> str:
    """Arrow names a CSV column by its number; a person wants its name."""
    found = re.search(r"column #(\d+)", message)
    if found and int(found[1]) < len(header):
        return message.replace(found[0], f"column {header[int(found[1])]!r}")
    return message


def _normal(path: Path, batch: Any, sensors: Sequence[str]) -> pa.Table:
    rows = batch.num_rows
    names = batch.schema.names
    out: list[Any] = [_ts_ms(path, batch.column("ts"))]
    for name in TEXTS:
        if name not in names:
            out.append(pa.nulls(rows, pa.string()))
            continue
        column = _cast(path, name, batch.column(name), pa.string())
        if name in NEEDED and column.null_count:
            raise ConfigError(f"{path}: column {name!r} is empty in {column.null_count} rows")
        out.append(column)
    for name in sensors:
        if name in names:
            out.append(_cast(path, name, batch.column(name), pa.float64()))
        else:
            out.append(pa.nulls(rows, pa.float64()))
    return pa.table(out, schema=normal_schema(sensors))


def _cast(path: Path, name: str, column: Any, to: pa.DataType) -> Any:
    if pa.types.is_boolean(column.type) or pa.types.is_temporal(column.type):
        raise ConfigError(f"{path}: column {name!r} has the type {column.type}, not {to}")
    try:
        return column.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"{path}: column {name!r} cannot be read as {to}: {error}") from error


def _ts_ms(path: Path, column: Any) -> Any:
    """Unix milliseconds of a time column: time stamps, Unix seconds, or text of either."""
    try:
        if column.null_count:
            raise ConfigError(f"{path}: column 'ts' is empty in {column.null_count} rows")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = _parse_text(column)
        if pa.types.is_timestamp(column.type):
            # Without a zone it is UTC, as the contract says; either way the number is UTC.
            ms = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        else:
            seconds = column.cast(pa.float64())
            ms = pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"{path}: column 'ts' holds what is neither RFC 3339 nor Unix seconds: {error}"
        ) from error
    if len(ms):
        low, high = pc.min(ms).as_py(), pc.max(ms).as_py()
        if low < _FIRST_MS or high > _LAST_MS:
            bad = low if low < _FIRST_MS else high
            raise ConfigError(f"{path}: column 'ts' holds {bad / 1000:g}, no time of this century")
    return ms


def _parse_text(column: Any) -> Any:
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    first = column[0].as_py()
    zoned = re.search(r"(Z|[+-]\d\d:?\d\d)$", first) is not None
    return column.cast(pa.timestamp("ns", "UTC" if zoned else None))
