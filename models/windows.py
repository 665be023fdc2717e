"""Minute rows of a card → the windows that the worker would score, and their labels.

Shapes: M minute rows of a device, N windows, B windows gathered at once, T = 60 minutes,
C columns, H horizons.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX, MIN_COMPLETENESS, MINUTE_MS, WINDOW_MINUTES

_SAMPLES: Final = COLUMN_INDEX["samples"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[np.float32]

HORIZONS_MINUTES: Final = (15, 60, 240)
MIN_ROWS: Final = int(np.ceil(WINDOW_MINUTES * MIN_COMPLETENESS))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a card: ms UTC of its failure and of its removal, None when neither."""

    failed_ms: int | None = None
    kind: str = ""
    moved_ms: int | None = None

    @property
    def end_ms(self) -> int | None:
        """From here on nothing counts: the failure, or the move before it."""
        times = [t for t in (self.failed_ms, self.moved_ms) if t is not None]
        return min(times) if times else None

    @property
    def failure_ms(self) -> int | None:
        """The failure, unless the card was taken out of service before it."""
        if self.failed_ms is None or (self.moved_ms is not None and self.moved_ms < self.failed_ms):
            return None
        return self.failed_ms


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMinutes:
    """The minute rows of one card, sorted: ``minute_M`` Unix minutes, ``rows_MC`` float32.

    Rows whose minute does not end before the card's failure, or by its move, are not here. A
    row without samples stands for a minute in which the card's rig spoke, but not of the card.
    """

    device: str
    node: str
    minute_M: Ints
    rows_MC: Array
    outcome: Outcome

    @property
    def first_ms(self) -> int:
        """Start of the first minute with samples."""
        return int(self.sampled_M[0]) * MINUTE_MS

    @property
    def last_ms(self) -> int:
        """End of the last minute with samples."""
        return (int(self.sampled_M[-1]) + 1) * MINUTE_MS

    @property
    def sampled_M(self) -> Ints:
        """The minutes that hold samples."""
        return self.minute_M[self.rows_MC[:, _SAMPLES] > 0]


def scorable(minute_M: Ints, rows_MC: Array) -> Ints:
    """Indices into M of the minutes at which a window is scored (contracts section 3).

    The newest row is there, and at least half of the window's sixty hold samples.
    """
    total = np.r_[0, np.cumsum(rows_MC[:, _SAMPLES] > 0)]
    begin = np.searchsorted(minute_M, minute_M - (WINDOW_MINUTES - 1))
    count = total[1:] - total[begin]
    return np.flatnonzero(count >= MIN_ROWS)


def gather(minute_M: Ints, rows_MC: Array, end_B: Ints) -> Array:
    """The windows that end at the rows ``end_B``: float32 [B, T, C], NaN where no row is."""
    wanted = minute_M[end_B][:, None] + np.arange(1 - WINDOW_MINUTES, 1)
    at = np.searchsorted(minute_M, wanted)
    found = minute_M[np.minimum(at, len(minute_M) - 1)] == wanted
    rows = rows_MC[np.where(found, at, 0)]
    rows[~found] = np.nan
    return rows


def alarm_instants_ms(minute_M: Ints, end_N: Ints) -> Ints:
    """End of the last minute used, ms UTC: when an alarm on that window would be raised."""
    return (minute_M[end_N] + 1) * MINUTE_MS


def labels(at_ms_N: Ints, outcome: Outcome, last_ms: int) -> tuple[Bools, Bools]:
    """Whether a failure lies in (t, t + horizon], and whether that is known: both [N, H].

    It is not known where a move or the end of the recording comes first.
    """
    horizon_ms = np.array(HORIZONS_MINUTES, dtype=np.int64) * MINUTE_MS
    until = at_ms_N[:, None] + horizon_ms
    failure = outcome.failure_ms
    if failure is not None:
        positive = (at_ms_N[:, None] < failure) & (failure <= until)
        return positive, np.ones_like(positive)
    end = last_ms if outcome.moved_ms is None else min(last_ms, outcome.moved_ms)
    return np.zeros(until.shape, dtype=np.bool_), until <= end
