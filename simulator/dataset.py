"""A fleet's story written as a data set: contracts section 4, streaming, in bounded memory."""

import csv
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from contract.errors import ConfigError, RigcanaryError
from contract.signals import SIGNAL_NAMES, STATES
from simulator.fleet import FleetSpec, fleet_story
from simulator.sensors import ROW
from simulator.story import Story
from simulator.streams import F64, Bool, Int, generator, uniforms
from simulator.world import World

Format = Literal["parquet", "csv"]

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""When a data set begins unless told otherwise: a simulation has no clock."""

_GROUP_CARDS: Final = 512  # stepped together; more cards a step amortise numpy's call costs
_BLOCK_ROWS: Final = 400_000  # held before they are written: about 60 MB
_DAY_SECONDS: Final = 86_400.0
_RATE_GAP_SECONDS: Final = 60.0  # dT/dt over a longer gap would say nothing
_TEMPERATURE: Final = ROW["temperature_celsius"]
_RATE: Final = ROW["temperature_rate_celsius_per_second"]

SCHEMA: Final = pa.schema(
    [
        ("ts", pa.timestamp("ms", tz="UTC")),
        ("site", pa.string()),
        ("node", pa.string()),
        ("device", pa.string()),
        ("state", pa.string()),
        ("model", pa.string()),
        *((name, pa.float64()) for name in SIGNAL_NAMES),
    ]
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written. ``device_days`` are of rows, a card's days until its end."""

    rows: int
    devices: int
    device_days: float
    failures: int
    moves: int
    by_kind: dict[str, int]
    files: int


@dataclass(slots=True)
class _Part:
    """Ticks of one group of rigs, not yet written."""

    ts_ms_TD: Int
    values_TSD: F64
    state_TD: Int
    keep_TD: Bool
    filled: int = 0


class _Group:
    """Some rigs of the story, stepped together through the whole of it."""

    def __init__(
        self,
        story: Story,
        nodes: tuple[str, ...],
        interval_seconds: float,
        start_ms: int,
        ends: dict[str, float],
    ) -> None:
        self._world = World(story, nodes)
        self._interval = interval_seconds
        self._ticks = int(story.duration_seconds / interval_seconds)
        self._start_ms = start_ms
        cards = self._world.cards
        self.site = story.site
        self.node_names = [card.node for card in cards]
        self.device_names = [card.device for card in cards]
        self.models = [card.model for card in cards]
        # A rig's agent ticks at its own phase within the interval.
        phase = uniforms(story.seed, "phase", self.node_names, 1)[:, 0]
        self._phase_ms_D = np.floor(phase * interval_seconds * 1000).astype(np.int64)
        self._end_ms_D = np.array(
            [np.floor(min(ends.get(d, np.inf), 1e12) * 1000) for d in self.device_names]
        )
        self._before_D = np.full(len(cards), np.nan)
        self._before_at_D = np.full(len(cards), -np.inf)

    def _empty(self, ticks: int) -> _Part:
        count = len(self.device_names)
        return _Part(
            np.zeros((ticks, count), np.int64),
            np.zeros((ticks, len(SIGNAL_NAMES), count)),
            np.zeros((ticks, count), np.int64),
            np.zeros((ticks, count), np.bool_),
        )

    def days(self) -> Iterator[Iterator[_Part]]:
        """For each day its blocks of rows, in order of time."""
        a_day = max(1, round(_DAY_SECONDS / self._interval))
        for first in range(0, self._ticks, a_day):
            yield self._blocks(first, min(first + a_day, self._ticks))

    def _blocks(self, first: int, end: int) -> Iterator[_Part]:
        size = max(1, _BLOCK_ROWS // len(self.device_names))
        for start in range(first, end, size):
            part = self._empty(min(size, end - start))
            for k in range(start, min(start + size, end)):
                self._tick(k * self._interval, part)
            yield part

    def _tick(self, at_seconds: float, part: _Part) -> None:
        sample = self._world.sample(at_seconds)
        k = part.filled
        ms_D = round(at_seconds * 1000) + self._phase_ms_D
        celsius_D = sample.values_SD[_TEMPERATURE]
        known_D = ~np.isnan(celsius_D) & ~sample.silent_D
        gap_D = at_seconds - self._before_at_D
        near_D = known_D & (gap_D <= max(_RATE_GAP_SECONDS, 2 * self._interval))
        rate_D = np.where(near_D, (celsius_D - self._before_D) / gap_D, np.nan)
        self._before_D = np.where(known_D, celsius_D, self._before_D)
        self._before_at_D = np.where(known_D, at_seconds, self._before_at_D)
        part.values_TSD[k] = sample.values_SD
        part.values_TSD[k, _RATE] = np.round(rate_D, 5)
        part.state_TD[k] = sample.state_D
        part.ts_ms_TD[k] = ms_D + self._start_ms
        gone_D = sample.absent_D | sample.silent_D | sample.dropped_D
        part.keep_TD[k] = ~gone_D & (ms_D < self._end_ms_D)
        part.filled += 1

    def table(self, part: _Part) -> pa.Table:
        """Its rows as an Arrow table, card after card, missing values null."""
        keep_DT = np.ascontiguousarray(part.keep_TD.T)
        cards = np.repeat(np.arange(len(self.device_names)), keep_DT.sum(axis=1))

        def names(choices: list[str], which: Int) -> pa.Array:
            array = pa.DictionaryArray.from_arrays(which.astype(np.int32), pa.array(choices))
            return array.cast(pa.string())

        columns = [
            pa.array(part.ts_ms_TD.T[keep_DT]).cast(SCHEMA.field("ts").type),
            names([self.site], np.zeros_like(cards)),
            names(self.node_names, cards),
            names(self.device_names, cards),
            names(list(STATES), part.state_TD.T[keep_DT]),
            names(self.models, cards),
        ]
        columns += [
            pa.array(part.values_TSD[:, s].T[keep_DT], from_pandas=True)
            for s in range(len(SIGNAL_NAMES))
        ]
        return pa.table(columns, schema=SCHEMA)


def rfc3339(moment: datetime) -> str:
    """``2026-01-01T00:00:00.000Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _csv_table(table: pa.Table) -> pa.Table:
    # %S has the milliseconds of a millisecond column.
    text = pc.strftime(table.column("ts"), format="%Y-%m-%dT%H:%M:%SZ")
    return table.set_column(0, "ts", text)


def _writer(path: Path, form: Format) -> Any:
    if form == "csv":
        schema = SCHEMA.set(0, pa.field("ts", pa.string()))
        options = pyarrow.csv.WriteOptions(quoting_style="none")
        return pyarrow.csv.CSVWriter(path, schema, write_options=options)
    return pq.ParquetWriter(path, SCHEMA, compression="zstd", store_schema=False)


def _prepare(out: Path, force: bool) -> Path:
    old = [
        p
        for p in (
            out / "telemetry",
            out / "telemetry.parquet",
            out / "telemetry.csv",
            out / "minutes.parquet",
            out / "failures.csv",
            out / "moves.csv",
        )
        if p.exists()
    ]
    if old and not force:
        raise ConfigError(
            f"{out} already holds a data set ({old[0].name}); "
            "choose another folder, or --force to replace it"
        )
    folder = out / "telemetry"
    try:
        for path in old:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error.strerror or error}") from error
    return folder


def _moves(spec: FleetSpec, story: Story) -> dict[str, float]:
    """Cards taken out of service before they fail, and when."""
    rng = generator(spec.seed, "moves")
    return {
        f.device: f.failed_at_seconds - float(rng.uniform(300, 5400))
        for f in story.failures
        if rng.random() < spec.move_share
    }


def _events(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_fleet(
    spec: FleetSpec,
    out: Path,
    form: Format = "parquet",
    *,
    force: bool = False,
    start: datetime = START,
    progress: Callable[[float], None] | None = None,
) -> Summary:
    """Simulate ``spec`` into the folder ``out``; ``progress`` is told the share done (0–1).

    A card has no row at or after its failure, nor after its move. ``failures.csv`` is written
    last: a folder without it is not finished.

    Raises:
        ConfigError: for an impossible fleet, or when ``out`` holds a data set and not ``force``.
        RigcanaryError: when the disk does not take it.
    """
    story = fleet_story(spec)
    folder = _prepare(out, force)
    moves = _moves(spec, story)
    failures = [f for f in story.failures if f.device not in moves]
    ends = {**{f.device: f.failed_at_seconds for f in failures}, **moves}
    rigs = max(1, _GROUP_CARDS // spec.cards)
    groups = [story.nodes[i : i + rigs] for i in range(0, len(story.nodes), rigs)]
    rows = files = done = 0
    try:
        for g, nodes in enumerate(groups):
            group = _Group(
                story, nodes, spec.interval_seconds, round(start.timestamp() * 1000), ends
            )
            for day, blocks in enumerate(group.days()):
                path = folder / f"part-{g:04d}-{day:04d}.{form}"
                with _writer(path, form) as writer:
                    for part in blocks:
                        table = group.table(part)
                        writer.write_table(_csv_table(table) if form == "csv" else table)
                        rows += table.num_rows
                        done += part.filled * len(nodes)
                        if progress is not None:
                            ticks = spec.days * _DAY_SECONDS / spec.interval_seconds
                            progress(done / (ticks * len(story.nodes)))
                files += 1

        def moment(seconds: float) -> str:
            return rfc3339(start + timedelta(seconds=np.floor(seconds * 1000) / 1000))

        if moves:
            _events(
                out / "moves.csv",
                ("device", "moved_at"),
                [(device, moment(at)) for device, at in sorted(moves.items())],
            )
        _events(
            out / "failures.csv",
            ("device", "failed_at", "kind"),
            [(f.device, moment(f.failed_at_seconds), f.kind) for f in failures],
        )
    except OSError as error:
        raise RigcanaryError(
            f"cannot write the data set to {out}: {error.strerror or error}"
        ) from error
    by_kind: dict[str, int] = {}
    for failure in failures:
        by_kind[failure.kind] = by_kind.get(failure.kind, 0) + 1
    lived = sum(min(ends.get(c.device, np.inf), story.duration_seconds) for c in story.devices)
    return Summary(
        rows,
        len(story.devices),
        lived / _DAY_SECONDS,
        len(failures),
        len(moves),
        dict(sorted(by_kind.items())),
        files,
    )
