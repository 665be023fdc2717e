"""Recorded history → a fleet data set folder (contracts section 4), in bounded memory."""

import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ConfigError, RigcanaryError
from contract.times import rfc3339
from contract.topics import DECISIONS as DECISIONS_TOPIC
from contract.topics import MINUTES as MINUTES_TOPIC
from stream.edge import labels
from stream.edge.day_table import DayTable
from stream.edge.history_rows import BUILDERS, DECISIONS, MINUTES
from stream.edge.kafka_read import read_topic

log = logging.getLogger("rigcanary.export")

HISTORY_FOLDERS: Final = ("history", "worker/history", ".")
"""Where below a state folder the history lies: of a worker, of ``serve``, or it itself."""
_FLUSH_VALUES: Final = 512


@dataclass
class Exported:
    """What an export wrote."""

    out: str
    minutes: int = 0
    devices: int = 0
    days: int = 0
    failures: int = 0
    moves: int = 0
    unusable: int = 0
    seen: set[str] = field(default_factory=set, repr=False)

    def summary(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "out": self.out, "minute_rows": self.minutes, "devices": self.devices,
            "days": self.days, "failures": self.failures, "moves": self.moves,
            "unusable_records": self.unusable,
        }  # fmt: skip


def find_history(state: Path) -> Path | None:
    """The folder below ``state`` that holds ``minutes/``."""
    for name in HISTORY_FOLDERS:
        folder = state / name
        if any((folder / MINUTES.name).glob("*.parquet")):
            return folder
    return None


def check_out(out: Path) -> None:
    """Refuse a folder that holds a data set already.

    Raises:
        ConfigError: naming it.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} exists already and is not empty; choose another folder")


def export_state(state: Path, out: Path) -> Exported:
    """Write the history below ``state`` as a data set.

    Raises:
        ConfigError: when there is no history, or ``out`` is not empty.
        RigcanaryError: when ``out`` cannot be written.
    """
    history = find_history(state)
    if history is None:
        raise ConfigError(
            f"--state {state}: no history there (minutes/*.parquet); "
            "a worker keeps one when it runs with --state"
        )
    return write_data_set(history, out, labels.read(state / labels.FILE))


async def export_kafka(kafka: str, out: Path, state: Path | None) -> Exported:
    """Write what ``rigcanary.minutes`` and ``rigcanary.decisions`` hold as a data set.

    Labels come from ``state``, if it is given.

    Raises:
        ConfigError: when the topics are absent or ``out`` is not empty.
        RigcanaryError: when Kafka cannot be reached or ``out`` cannot be written.
    """
    check_out(out)
    failures = labels.read(state / labels.FILE) if state is not None else []
    unusable = 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rigcanary-export-", dir=out.parent) as folder:
            for topic, spec in ((MINUTES_TOPIC, MINUTES), (DECISIONS_TOPIC, DECISIONS)):
                table = DayTable(Path(folder), spec)
                unusable += await _gather(read_topic(kafka, topic), table)
            exported = write_data_set(Path(folder), out, failures)
    except OSError as error:
        raise RigcanaryError(f"--out {out}: cannot write it: {error.strerror}") from error
    exported.unusable = unusable
    return exported


async def _gather(values: AsyncIterator[bytes], table: DayTable) -> int:
    """Write values to ``table`` in the order read; how many were unusable."""
    unusable = 0
    held: list[Mapping[str, Any]] = []

    def flush() -> int:
        bad = 0
        built = []
        for value in held:
            try:
                built.append(BUILDERS[table.spec.name]([value]))
            except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException):
                bad += 1
        held.clear()
        if built:
            for day in table.append(pa.concat_tables(built)):
                if table.parts(day) >= 64:
                    table.fold(day)
        return bad

    async for raw in values:
        try:
            held.append(orjson.loads(raw))
        except orjson.JSONDecodeError:
            unusable += 1
        if len(held) >= _FLUSH_VALUES:
            unusable += flush()
    return unusable + flush()


def write_data_set(history: Path, out: Path, failures: list[labels.Failure]) -> Exported:
    """Write ``minutes.parquet``, ``failures.csv`` and ``moves.csv`` below ``out``.

    Raises:
        ConfigError: when ``out`` is not empty.
        RigcanaryError: when it cannot be written.
    """
    check_out(out)
    result = Exported(str(out))
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        _write_minutes(DayTable(history, MINUTES), out / "minutes.parquet", result)
        labels.write(out / labels.FILE, failures)
        result.failures = len(failures)
        moves = _moves(DayTable(history, DECISIONS))
        lines = [f"{_quoted(device)},{rfc3339(at_ms)}" for device, at_ms in moves]
        (out / "moves.csv").write_text("\n".join(["device,moved_at", *lines]) + "\n", "utf-8")
        result.moves = len(moves)
    except OSError as error:
        if made:
            shutil.rmtree(out, ignore_errors=True)
        raise RigcanaryError(f"--out {out}: cannot write it: {error.strerror}") from error
    return result


def _write_minutes(table: DayTable, path: Path, result: Exported) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with table.held(), pq.ParquetWriter(temporary, MINUTES.schema, compression="zstd") as writer:
        for day in table.days():
            result.days += 1
            for batch in table.batches(day):
                writer.write_batch(batch)
                result.minutes += batch.num_rows
                result.seen.update(batch.column("device").unique().to_pylist())
    result.devices = len(result.seen)
    temporary.replace(path)


def _moves(table: DayTable) -> list[tuple[str, int]]:
    """Cards that were taken out of service and did not come back: (device, Unix ms UTC).

    A migration that was only a dry run, was withdrawn, or whose card was released again, is
    not a move: the card went on, and so do its rows.
    """
    requested: dict[str, tuple[str, int]] = {}
    for row in _rows(table):
        episode, device = row["episode_id"], row["device"]
        if episode is None or device is None:
            continue
        if row["type"] == "migration.requested" and not row["dry_run"]:
            requested.setdefault(episode, (device, row["decided_at"]))
        elif row["type"] in ("migration.withdrawn", "device.released"):
            requested.pop(episode, None)
    return sorted(requested.values(), key=lambda move: (move[1], move[0]))


def _rows(table: DayTable) -> Iterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    names = ["decided_at", "device", "type", "dry_run", "episode_id"]
    with table.held():
        for day in table.days():
            for batch in table.batches(day):
                columns = batch.select(names)
                columns = columns.set_column(
                    0, "decided_at", columns.column("decided_at").cast(pa.int64())
                )
                rows += columns.to_pylist()
    rows.sort(key=lambda row: row["decided_at"])
    yield from rows


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text
