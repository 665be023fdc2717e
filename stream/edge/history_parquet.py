"""The history as a fleet data set folder: one Parquet file a day (contracts sections 4 and 9).

``minutes/``, ``risks/``, ``decisions/`` and ``events/`` below the folder, see
:class:`stream.edge.day_table.DayTable`. What is not yet in a file is at most ``FLUSH_SECONDS``
old; after a crash it is still in Kafka, and ``rigcanary export --kafka`` reads it there.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from stream.edge.day_table import DayTable
from stream.edge.history_rows import BUILDERS, TABLES
from stream.edge.history_thread import BackgroundHistory, seconds

log = logging.getLogger("rigcanary.history")

FLUSH_SECONDS: Final = 15.0
FLUSH_ROWS: Final = 20_000
"""Rows of a table held at most: 20 MB of minute rows."""
MAX_HELD_ROWS: Final = 10 * FLUSH_ROWS
"""… and while the disk cannot be written; beyond it rows are dropped and counted."""
FOLD_PARTS: Final = 96
"""Parts of a day that are folded before the day is over."""
STOP_FOLD_BYTES: Final = 64_000_000
"""Days up to this size are folded at the stop; larger ones at the next start."""


class ParquetHistory(BackgroundHistory):
    """Appends minute rows, risks, decisions and events below ``folder``, in a thread."""

    def __init__(self, folder: Path, flush_seconds: float = FLUSH_SECONDS) -> None:
        super().__init__("history-parquet")
        self._folder = folder
        self._flush_seconds = flush_seconds
        self._tables = {spec.name: DayTable(folder, spec) for spec in TABLES}
        self._held: dict[str, list[pa.Table]] = {name: [] for name in self._tables}
        self._flush_at = 0.0
        self._open: dict[str, set[str]] = {name: set() for name in self._tables}

    def begin(self) -> None:
        """Fold what an earlier run left."""
        self._flush_at = seconds() + self._flush_seconds
        for table in self._tables.values():
            table.clean()
            for day in table.days()[:-1]:
                self._fold(table, day)

    def write(self, batch: list[tuple[str, Mapping[str, Any]]]) -> None:
        by_table: dict[str, list[Mapping[str, Any]]] = {}
        for name, value in batch:
            by_table.setdefault(name, []).append(value)
        for name, values in by_table.items():
            self._held[name] += self._built(name, values)
        full = any(self._rows(name) >= FLUSH_ROWS for name in self._held)
        if full or seconds() >= self._flush_at:
            self.flush()

    def finish(self) -> None:
        """Flush, and fold the days that are small enough to be quick."""
        self.flush()
        for name, days in self._open.items():
            table = self._tables[name]
            for day in sorted(days):
                if sum(path.stat().st_size for path in table.files(day)) <= STOP_FOLD_BYTES:
                    self._fold(table, day)

    def flush(self) -> None:
        """Write what is held as parts; fold days that are over or in many parts."""
        self._flush_at = seconds() + self._flush_seconds
        for name, table in self._tables.items():
            held = self._held[name]
            if not held:
                continue
            rows = self._rows(name)
            try:
                days = table.append(pa.concat_tables(held))
            except OSError as error:
                self.say_once("disk", "history %s cannot be written: %s", table.folder, error)
                self._shed(name)
                continue
            self._held[name] = []
            self.count(name, "written", rows)
            if self.say_again("disk"):
                log.info("history %s is written again", table.folder)
            self._open[name].update(days)
            self._fold_some(name, table)

    def _fold_some(self, name: str, table: DayTable) -> None:
        newest = max(self._open[name])
        for day in sorted(self._open[name]):
            # The day before the newest may still get corrections; two days back is over.
            over = day < newest and table.days()[-2:-1] != [day]
            if (over or table.parts(day) >= FOLD_PARTS) and self._fold(table, day) and over:
                self._open[name].discard(day)

    def _fold(self, table: DayTable, day: str) -> bool:
        try:
            return table.fold(day)
        except (OSError, pa.ArrowException) as error:
            self.say_once("fold", "history %s %s cannot be folded: %s", table.folder, day, error)
            return False

    def _built(self, name: str, values: list[Mapping[str, Any]]) -> list[pa.Table]:
        try:
            return [BUILDERS[name](values)]
        except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException):
            if len(values) == 1:
                self.count(name, "failed")
                self.say_once(
                    f"bad {name}", "history: an unusable value of %s: %.200r", name, values
                )
                return []
        # One of them is bad: halve, to lose no other.
        half = len(values) // 2
        return self._built(name, values[:half]) + self._built(name, values[half:])

    def _rows(self, name: str) -> int:
        return sum(table.num_rows for table in self._held[name])

    def _shed(self, name: str) -> None:
        held = self._held[name]
        while held and self._rows(name) > MAX_HELD_ROWS:
            self.count(name, "dropped", held.pop(0).num_rows)
