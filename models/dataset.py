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

from contract.errors import ConfigError
from contract.minute import COLUMN_INDEX, COLUMNS, MINUTE_MS, WINDOW_MINUTES
from contract.signals import SIGNAL_NAMES, STATES
from models import fleet_files
from models.fleet_files import (
    batches,
    find_files,
    open_parquet,
    read_outcomes,
    row_estimate,
    time_column,
    to_ms,
)
from models.reduce import reduce_samples
from models.windows import DeviceMinutes, Outcome

PART_ROWS: Final = 3_000_000
"""Samples that are reduced at once; at 16 signals some 0.4 GB."""
_MAX_PARTS: Final = 512
_STATE_CODE: Final = {state: code for code, state in enumerate(STATES)}
_SAMPLE: Final = np.dtype(
    [("device", "<i4"), ("ts", "<i8"), ("state", "u1"), ("x", "<f8", (len(SIGNAL_NAMES),))]
)


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
            minutes = find_files(folder, "minutes", ("parquet",))
            telemetry = [] if minutes else find_files(folder, "telemetry", ("parquet", "csv"))
            if not minutes and not telemetry:
                raise ConfigError(
                    f"data set {folder}: neither telemetry.parquet, telemetry.csv, telemetry/ "
                    "nor minutes.parquet is there"
                )
            self.minutes_files += minutes
            self.telemetry_files += telemetry
        self._temporary = tempfile.TemporaryDirectory(prefix="rigcanary-")
        self._parts: list[Path] | None = None
        self._spoken: dict[str, npt.NDArray[np.int64]] = {}
        self._devices: dict[str, int] = {}
        self._nodes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
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
            self._spoken = self._minutes_of_nodes()
        names = list(self._devices)
        for path in self._parts:
            with np.load(path) as part:
                device, minute, rows = part["device"], part["minute"], part["rows"]
            starts = np.flatnonzero(np.r_[True, device[1:] != device[:-1]][: len(device)])
            for begin, end in zip(starts, np.r_[starts[1:], len(device)], strict=True):
                code = int(device[begin])
                outcome = self.outcomes.get(names[code], Outcome())
                own = minute[begin:end]
                keep = _before_end(own, outcome)
                if (rows[begin:end][keep][:, COLUMN_INDEX["samples"]] > 0).any():
                    silent = self._silent(self._nodes[code], own)
                    silent = silent[_before_end(silent, outcome)]
                    yield DeviceMinutes(
                        names[code],
                        self._nodes[code],
                        *_with_empty(own[keep], rows[begin:end][keep], silent),
                        outcome,
                    )

    def _minutes_of_nodes(self) -> dict[str, npt.NDArray[np.int64]]:
        """The minutes in which each rig spoke, of whatever card."""
        spoken: dict[str, list[npt.NDArray[np.int64]]] = {}
        for path in self._parts or ():
            with np.load(path) as part:
                device, minute = part["device"], part["minute"]
            for code in np.unique(device):
                spoken.setdefault(self._nodes[code], []).append(minute[device == code])
        return {node: np.unique(np.concatenate(minutes)) for node, minutes in spoken.items()}

    def _silent(self, node: str, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Minutes of the rig without the card, until its windows cannot be scored any more."""
        spoken = self._spoken[node]
        near = spoken[(spoken > own[0]) & (spoken < own[-1] + WINDOW_MINUTES)]
        return np.setdiff1d(near, own, assume_unique=True)

    # -- telemetry ------------------------------------------------------------------------

    def _part_telemetry(self) -> Iterator[Path]:
        rows = sum(row_estimate(path) for path in self.telemetry_files)
        parts = min(max(1, math.ceil(rows / PART_ROWS)), _MAX_PARTS)
        root = Path(self._temporary.name)
        spilled = [root / f"samples-{i:03d}" for i in range(parts)]
        for path in self.telemetry_files:
            for frame in batches(path):
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
            table = reduce_samples(samples["device"], samples["ts"], samples["state"], samples["x"])
            del samples
            yield _save(
                root / f"minutes-{i:03d}.npz",
                table.device_M,
                table.minute_M,
                table.rows_MC.astype(np.float32),
            )

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
            own = np.array(
                [_STATE_CODE.get(n, _STATE_CODE["unknown"]) if n else 0 for n in names],
                dtype=np.uint8,
            )
            samples["state"] = own[codes]
        for s, name in enumerate(SIGNAL_NAMES):
            samples["x"][:, s] = frame[name].to_numpy(np.float64) if name in frame else np.nan
        return samples

    # -- minute rows ----------------------------------------------------------------------

    def _part_minutes(self) -> Iterator[Path]:
        """One part: minute rows are a twelfth of the telemetry or less."""
        device, minute, rows = [], [], []
        for path in self.minutes_files:
            time = time_column(path)
            for batch in open_parquet(path).iter_batches(fleet_files.BATCH_ROWS):
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
        yield _save(
            Path(self._temporary.name) / "rows.npz",
            devices[keep],
            minutes[keep],
            np.concatenate(rows)[order[keep]],
        )


def _with_empty(
    minute: npt.NDArray[np.int64], rows: npt.NDArray[np.float32], empty: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Rows without samples put in at the minutes ``empty``."""
    if not len(empty):
        return minute, rows
    blank = np.full((len(empty), rows.shape[1]), np.nan, dtype=np.float32)
    minutes = np.concatenate([minute, empty])
    order = np.argsort(minutes, kind="stable")
    return minutes[order], np.concatenate([rows, blank])[order]


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
