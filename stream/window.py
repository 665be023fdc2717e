"""Sixty-minute windows: a ring of minute rows a node, arrays in memory.

Rebuilt from the table of minute records after a restart; never stored themselves.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMNS, MIN_COMPLETENESS, MINUTE_MS, WINDOW_MINUTES

RING_MINUTES: Final = 90
"""Rows kept a node: a window, the ten minutes of lateness, and a backlog of twenty."""
SLOW_SECONDS: Final = 30.0
"""From this declared cadence on a minute holds one or two samples, and with a jitter of a second
none: a single empty minute is then no gap."""
_EMPTY: Final = -1
_START_DEVICES: Final = 8


@dataclass(slots=True, eq=False)
class _Ring:
    minute_ms_T: npt.NDArray[np.int64]
    rows_TDC: npt.NDArray[np.float32]
    slow_T: npt.NDArray[np.bool_]
    devices: dict[str, int] = field(default_factory=dict)
    last_minute_ms: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Windows of a node's devices that end with one minute.

    ``rows_DTC`` is float32, oldest minute first, NaN where there is no row;
    a single empty row of a slow cadence is the one before it. ``completeness_D`` is the share
    of the rows that hold samples.
    """

    devices: tuple[str, ...]
    rows_DTC: npt.NDArray[np.float32]
    completeness_D: npt.NDArray[np.float64]

    @property
    def enough_D(self) -> npt.NDArray[np.bool_]:
        """Which devices have enough rows to be scored."""
        return self.completeness_D >= MIN_COMPLETENESS


class WindowStore:
    """Minute rows of the nodes of one partition."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def put(
        self,
        key: str,
        minute_ms: int,
        devices: tuple[str, ...],
        rows_DC: npt.NDArray[np.float64],
        interval_seconds: float,
    ) -> None:
        """Insert or replace the rows of a node and minute; the cadence is the declared one."""
        ring = self._rings.get(key)
        if ring is None:
            shape = (RING_MINUTES, _START_DEVICES, len(COLUMNS))
            ring = self._rings[key] = _Ring(
                np.full(RING_MINUTES, _EMPTY, np.int64),
                np.full(shape, np.nan, np.float32),
                np.zeros(RING_MINUTES, np.bool_),
            )
        for device in devices:
            self._place(ring, device, minute_ms)
        slot = (minute_ms // MINUTE_MS) % RING_MINUTES
        if ring.minute_ms_T[slot] > minute_ms:
            return  # a newer minute already took the slot: this one is out of every window
        ring.minute_ms_T[slot] = minute_ms
        ring.slow_T[slot] = interval_seconds >= SLOW_SECONDS
        ring.rows_TDC[slot] = np.nan
        ring.rows_TDC[slot, [ring.devices[d] for d in devices]] = rows_DC

    def _place(self, ring: _Ring, device: str, minute_ms: int) -> None:
        at = ring.devices.get(device)
        if at is not None:
            ring.last_minute_ms[at] = max(ring.last_minute_ms[at], minute_ms)
            return
        # A device not heard of for a whole ring leaves its place: a card that was replaced.
        for old, index in ring.devices.items():
            if ring.last_minute_ms[index] + RING_MINUTES * MINUTE_MS <= minute_ms:
                del ring.devices[old]
                ring.devices[device] = index
                ring.last_minute_ms[index] = minute_ms
                ring.rows_TDC[:, index] = np.nan
                return
        index = len(ring.last_minute_ms)
        if index == ring.rows_TDC.shape[1]:
            more = np.full_like(ring.rows_TDC, np.nan)
            ring.rows_TDC = np.concatenate([ring.rows_TDC, more], axis=1)
        ring.devices[device] = index
        ring.last_minute_ms.append(minute_ms)

    def windows(self, key: str, minute_ms: int) -> Windows:
        """Windows of the node's devices, the newest minute of which is ``minute_ms``.

        Devices without any row in the window are left out.
        """
        ring = self._rings[key]
        wanted_T = minute_ms + MINUTE_MS * np.arange(1 - WINDOW_MINUTES, 1)
        slot_T = (wanted_T // MINUTE_MS) % RING_MINUTES
        rows_TDC = ring.rows_TDC[slot_T]
        there_T = ring.minute_ms_T[slot_T] == wanted_T
        rows_TDC[~there_T] = np.nan
        _bridge(rows_TDC, ring.slow_T[slot_T] & there_T)
        devices = tuple(sorted(ring.devices))
        rows_DTC = rows_TDC.transpose(1, 0, 2)[[ring.devices[d] for d in devices]]
        holds_DT = rows_DTC[:, :, 0] > 0
        there_D: npt.NDArray[np.bool_] = np.any(holds_DT, axis=1)
        return Windows(
            devices=tuple(d for d, there in zip(devices, there_D, strict=True) if there),
            rows_DTC=rows_DTC[there_D],
            completeness_D=holds_DT[there_D].mean(1),
        )

    def devices(self, key: str) -> int:
        """Number of the node's devices that have rows."""
        ring = self._rings.get(key)
        return len(ring.devices) if ring is not None else 0

    def forget(self, key: str) -> None:
        """Drop a node's rows."""
        self._rings.pop(key, None)


def _bridge(rows_TDC: npt.NDArray[np.float32], slow_T: npt.NDArray[np.bool_]) -> None:
    """Fill a device's empty minute after one of a slow cadence with that one's row, in place."""
    if not slow_T.any():
        return
    holds_TD = rows_TDC[:, :, 0] > 0
    t, device = np.nonzero(~holds_TD[1:] & holds_TD[:-1] & slow_T[:-1, None])
    rows_TDC[t + 1, device] = rows_TDC[t, device]
