"""Rows in any order → rows in the order of time, in bounded memory.

A first pass counts the rows of every minute. Rows that are in order already stream through; a
small set is sorted in memory. Else a second pass deals the rows out to temporary files, each
holding whole minutes of about ``CHUNK_ROWS`` rows, which are then sorted one after another.
Memory is a chunk's, or the busiest minute's where that is more; the temporary files take about
the size of the data set.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.fleet.files import TelemetryFile, batches
from contract.errors import ConfigError, RigcanaryError
from contract.topics import is_name

CHUNK_ROWS: Final = 250_000
_MINUTE_MS: Final = 60_000
_ORDER: Final = [(key, "ascending") for key in ("ts_ms", "site", "node", "device")]


@dataclass(frozen=True, slots=True)
class Survey:
    """What the first pass found. ``nodes`` are (site or None, node), sorted."""

    rows: int
    first_ms: int
    last_ms: int
    in_order: bool
    rows_by_minute: dict[int, int]
    nodes: tuple[tuple[str | None, str], ...]


def survey(files: Sequence[TelemetryFile]) -> Survey:
    """Read times and names of all rows.

    Raises:
        ConfigError: there are no rows, or a site or node cannot be part of an MQTT topic.
    """
    minutes: Counter[int] = Counter()
    nodes: set[tuple[str | None, str]] = set()
    first, last, rows, in_order = 2**62, -1, 0, True
    for file in files:
        for table in batches([file], texts=("site", "node")):
            if not table.num_rows:
                continue
            ts_ms = table["ts_ms"].to_numpy()
            in_order = in_order and ts_ms[0] >= last and bool((np.diff(ts_ms) >= 0).all())
            first, last = min(first, int(ts_ms.min())), max(last, int(ts_ms.max()))
            rows += len(ts_ms)
            found, counts = np.unique(ts_ms // _MINUTE_MS, return_counts=True)
            minutes.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
            new = _pairs(table) - nodes
            _check_names(file.path, new)
            nodes |= new
    if not rows:
        raise ConfigError(f"{files[0].path}: there are no rows")
    ordered = tuple(sorted(nodes, key=lambda pair: (pair[0] or "", pair[1])))
    return Survey(rows, first, last, in_order, dict(minutes), ordered)


def _pairs(table: pa.Table) -> set[tuple[str | None, str]]:
    unique = table.select(["site", "node"]).group_by(["site", "node"]).aggregate([])
    return set(zip(unique["site"].to_pylist(), unique["node"].to_pylist(), strict=True))


def _check_names(path: Path, pairs: Iterable[tuple[str | None, str]]) -> None:
    for site, node in pairs:
        for column, value in (("site", site), ("node", node)):
            if value is not None and not is_name(value):
                raise ConfigError(
                    f"{path}: column {column!r} holds {value!r:.80}; "
                    f"a {column} is 1–64 of A–Z a–z 0–9 . _ -"
                )


def ordered_tables(
    files: Sequence[TelemetryFile],
    sensors: Sequence[str],
    found: Survey,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[pa.Table]:
    """Tables of :func:`agents.fleet.files.normal_schema` that follow one another in time.

    Each is sorted by time, site, node and device; rows of one instant are in one table.

    Raises:
        ConfigError: naming a file and column that cannot be used.
        RigcanaryError: the temporary files cannot be written.
    """
    if found.in_order:
        yield from _stream(batches(files, sensors), chunk_rows)
    elif found.rows <= chunk_rows:
        yield pa.concat_tables(batches(files, sensors)).sort_by(_ORDER)
    else:
        with tempfile.TemporaryDirectory(prefix="rigcanary-sort-") as folder:
            edges_ms = _chunk_edges_ms(found.rows_by_minute, chunk_rows)
            try:
                paths = _deal(batches(files, sensors), edges_ms, Path(folder))
            except OSError as error:
                raise RigcanaryError(
                    f"cannot sort the data set in {folder}: {error}; "
                    f"set TMPDIR to a folder with more room"
                ) from error
            for path in paths:
                yield _read_spilled(path).sort_by(_ORDER)
                path.unlink()


def _stream(tables: Iterable[pa.Table], chunk_rows: int) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        if rows < chunk_rows:
            continue
        whole = pa.concat_tables(held)
        # The newest instant may go on in the next batch.
        newest = whole["ts_ms"][-1].as_py()
        ready = whole.filter(pc.less(whole["ts_ms"], newest))
        held = [whole.slice(ready.num_rows)]
        rows = held[0].num_rows
        if ready.num_rows:
            yield ready.sort_by(_ORDER)
    if rows:
        yield pa.concat_tables(held).sort_by(_ORDER)


def _chunk_edges_ms(rows_by_minute: dict[int, int], chunk_rows: int) -> list[int]:
    """Where a new chunk begins, so that each holds whole minutes of at most ``chunk_rows``."""
    edges, filled = [], 0
    for minute, rows in sorted(rows_by_minute.items()):
        if filled and filled + rows > chunk_rows:
            edges.append(minute * _MINUTE_MS)
            filled = 0
        filled += rows
    return edges


def _deal(tables: Iterable[pa.Table], edges_ms: list[int], folder: Path) -> list[Path]:
    """Append each row to its chunk's file; the chunks' files in the order of time."""
    paths = [folder / f"{i:06d}.arrows" for i in range(len(edges_ms) + 1)]
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for table in tables:
        chunk = np.searchsorted(edges_ms, table["ts_ms"].to_numpy(), side="right")
        order = np.argsort(chunk, kind="stable")
        dealt = table.take(pa.array(order))
        numbers, starts = np.unique(chunk[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            # Opened anew each time: there may be more chunks than a process may have files.
            with (
                paths[number].open("ab") as file,
                pa.ipc.new_stream(file, table.schema, options=options) as writer,
            ):
                writer.write_table(dealt.slice(start, end - start))
    return paths


def _read_spilled(path: Path) -> pa.Table:
    """All the Arrow streams that stand one after another in ``path``."""
    tables: list[Any] = []
    with pa.OSFile(str(path), "rb") as file:
        while file.tell() < file.size():
            with pa.ipc.open_stream(file) as stream:
                tables.append(stream.read_all())
    return pa.concat_tables(tables)
