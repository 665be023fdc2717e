"""A table kept as one Parquet file a day, written append-only and safe against crashes.

Rows are appended as small *parts* beside the day's file; folding joins them, keeping of rows
with the same key the last one. Every file is written under a temporary name, synced and
renamed. In the order of their names, a day's file comes first and its parts follow in the
order of writing, so that a reader who takes the last row of a key reads right at any moment.
"""

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stream.edge.history_rows import TableSpec

log = logging.getLogger("rigcanary.history")

BATCH_ROWS: Final = 65_536
DAY_MS: Final = 86_400_000
_STALE_SECONDS: Final = 3600
_PARQUET: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 3}


class DayTable:
    """One table of the history in ``folder / spec.name``; several processes may write it."""

    def __init__(self, folder: Path, spec: TableSpec) -> None:
        self.folder = folder / spec.name
        self.spec = spec
        self._writer = f"{os.getpid():x}-{secrets.token_hex(3)}"
        self._last_ns = 0

    def append(self, table: pa.Table) -> list[str]:
        """Write ``table`` as parts and return the days it touched, ``YYYY-MM-DD``.

        Raises:
            OSError: when it cannot be written; nothing half-written is left to be read.
        """
        if not table.num_rows:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        ms_R = table[self.spec.time].cast(pa.int64()).to_numpy()
        days_R = ms_R // DAY_MS
        touched = []
        for number in np.unique(days_R).tolist():
            day = f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"
            self._last_ns = max(self._last_ns + 1, time.time_ns())
            path = self.folder / f"{day}.z{self._last_ns:020d}-{self._writer}.parquet"
            self._write(path, [table.filter(pa.array(days_R == number))])
            touched.append(day)
        return touched

    def days(self) -> list[str]:
        """The days that have rows, in order."""
        return sorted({path.name[:10] for path in self.folder.glob("*.parquet")})

    def files(self, day: str) -> list[Path]:
        """The day's file and its parts, in the order in which the last row of a key wins."""
        return sorted(self.folder.glob(f"{day}.*parquet"))

    def parts(self, day: str) -> int:
        """How many parts of ``day`` wait to be folded."""
        return sum(path.name != f"{day}.parquet" for path in self.files(day))

    def batches(self, day: str) -> Iterator[pa.RecordBatch]:
        """The day's rows, each key once, in bounded memory (its keys, not its columns).

        A file that cannot be read is set aside as ``….corrupt`` and said.
        """
        files = [p for p in self.files(day) if self._readable(p)]
        keep_R = self._last_of_key(files)
        row = 0
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    kept = batch.filter(pa.array(keep_R[row : row + batch.num_rows]))
                    row += batch.num_rows
                    if kept.num_rows:
                        yield _conformed(kept, self.spec.schema)

    def fold(self, day: str) -> bool:
        """Join the day's parts into its file; False when another process is folding."""
        with self._lock() as mine:
            if not mine:
                return False
            files = self.files(day)
            if any(p.name != f"{day}.parquet" for p in files):
                self._write(self.folder / f"{day}.parquet", self.batches(day))
                # Gone only now: a crash before this leaves rows twice, never none.
                for path in files:
                    if path.name != f"{day}.parquet":
                        path.unlink(missing_ok=True)
            return True

    def clean(self) -> None:
        """Remove what a crash left half-written, once it is an hour old."""
        for path in self.folder.glob(".tmp-*"):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink(missing_ok=True)

    def _last_of_key(self, files: list[Path]) -> npt.NDArray[np.bool_]:
        pieces, row = [], 0
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=list(self.spec.key)):
                    keys = pa.Table.from_batches([batch]).select(list(self.spec.key))
                    columns = [
                        pc.dictionary_encode(c) if pa.types.is_string(c.type) else c
                        for c in keys.columns
                    ]
                    numbers = pa.array(np.arange(row, row + batch.num_rows))
                    row += batch.num_rows
                    names = [*self.spec.key, "_row"]
                    pieces.append(pa.Table.from_arrays([*columns, numbers], names))
        keep_R = np.zeros(row, dtype=np.bool_)
        if pieces:
            keys = pa.concat_tables(pieces).unify_dictionaries()
            grouped = keys.group_by(list(self.spec.key), use_threads=False)
            keep_R[grouped.aggregate([("_row", "max")])["_row_max"].to_numpy()] = True
        return keep_R

    def _readable(self, path: Path) -> bool:
        try:
            with pq.ParquetFile(path) as file:
                return set(self.spec.key) <= set(file.schema_arrow.names)
        except FileNotFoundError:  # folded by another process in between
            return False
        except (OSError, pa.ArrowException) as error:
            log.error("history: %s cannot be read and is set aside: %s", path, error)
            path.replace(path.with_name(path.name + ".corrupt"))
            return False

    def _write(self, path: Path, batches: Any) -> None:
        # Not ….parquet, so that no reader takes it for one.
        temporary = path.with_name(f".tmp-{self._writer}-{path.name}.half")
        try:
            with temporary.open("wb") as file:
                with pq.ParquetWriter(file, self.spec.schema, **_PARQUET) as writer:
                    for batch in batches:
                        if isinstance(batch, pa.Table):
                            writer.write_table(batch)
                        else:
                            writer.write_batch(batch)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from folding while this one reads, where it may."""
        try:
            file = (self.folder / ".lock").open("wb")
        except OSError:  # read-only, or there is no such history
            yield
            return
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True  # closing the file gives the lock back


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns of ``schema``; one that an older version did not write is null."""
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
