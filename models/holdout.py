"""Some rigs of a data set are kept for judging: always the same ones, whatever comes to it.

A retraining that judged on rigs it learned from would praise itself; one that drew them anew each
time would have seen them the time before.
"""

import csv
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contract.errors import ConfigError
from models.fleet_files import find_files

EVERY: Final = 5
"""One rig of so many judges."""
NODES_TO_HOLD: Final = 10
"""With fewer rigs single cards are kept."""
_LABELS: Final = ("failures.csv", "moves.csv")


class Parts(NamedTuple):
    """The two data sets."""

    learn: Path
    judge: Path


def hold_out(dataset: Path, out: Path) -> Parts:
    """Write ``out/learn`` and ``out/judge`` from the minute rows of a data set, row group by group.

    Raises:
        ConfigError: when there are no minute rows, or too few cards to keep one.
    """
    files = find_files(dataset, "minutes", ("parquet",))
    if not files:
        raise ConfigError(f"data set {dataset}: no minutes.parquet; `rigcanary export` writes it")
    by = "node" if _count(files, "node") >= NODES_TO_HOLD else "device"
    parts = Parts(out / "learn", out / "judge")
    rows = [0, 0]
    for folder in parts:
        (folder / "minutes").mkdir(parents=True)
    devices: tuple[set[str], set[str]] = (set(), set())
    for number, path in enumerate(files):
        with pq.ParquetFile(path) as file:
            writers = [
                pq.ParquetWriter(
                    folder / "minutes" / f"minutes-{number:05d}.parquet",
                    file.schema_arrow,
                    compression="zstd",
                )
                for folder in parts
            ]
            for batch in file.iter_batches():
                names = batch.column(by).dictionary_encode()
                kept = [zlib.crc32(str(name).encode()) % EVERY == 0 for name in names.dictionary]
                judges = pc.take(pa.array(kept, pa.bool_()), names.indices)
                for side, mask in enumerate((pc.invert(judges), judges)):
                    part = batch.filter(mask)
                    rows[side] += part.num_rows
                    devices[side].update(map(str, pc.unique(part.column("device")).to_pylist()))
                    writers[side].write_batch(part)
            for writer in writers:
                writer.close()
    if not rows[1] or not rows[0]:
        raise ConfigError(
            f"data set {dataset}: too few {by}s to keep some for judging; record more cards, or "
            "give --judge DATASET"
        )
    for folder, own in zip(parts, devices, strict=True):
        for name in _LABELS:
            if (dataset / name).is_file():
                _part_of_labels(dataset / name, folder / name, own)
    return parts


def _part_of_labels(source: Path, target: Path, devices: set[str]) -> None:
    with (
        source.open(newline="", encoding="utf-8") as before,
        target.open("w", newline="", encoding="utf-8") as after,
    ):
        reader = csv.DictReader(before)
        writer = csv.DictWriter(after, reader.fieldnames or ["device"])
        writer.writeheader()
        writer.writerows(row for row in reader if row.get("device") in devices)


def _count(files: list[Path], column: str) -> int:
    names: set[str] = set()
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[column]):
                names |= set(pc.unique(batch.column(0)).to_pylist())
    return len(names)
