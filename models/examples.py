"""Windows to learn from: all that come before failures, healthy ones thinned out."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.errors import RigcanaryError
from contract.minute import MINUTE_MS
from models.augment import augment, short_histories
from models.dataset import Fleet
from models.history import track
from models.seen import see
from models.split import Split
from models.windows import DeviceMinutes, alarm_instants_ms, gather, labels, scorable

_CHUNK: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """N windows: features [N, T, F] (half precision), departures from the card's history [N, H'],
    minutes since the card was first seen, labels [N, H]: 1, 0, −1 unknown, and the fold of each
    window's card (0 without folds).
    """

    x_NTF: npt.NDArray[np.float16]
    h_NH: npt.NDArray[np.float32]
    age_minutes_N: npt.NDArray[np.float32]
    y_NH: npt.NDArray[np.float32]
    fold_N: npt.NDArray[np.int64]

    def part(self, which_N: npt.NDArray[np.bool_], most: int | None = None) -> "Examples":
        """Some of the windows, at most ``most`` of them, evenly."""
        at = np.flatnonzero(which_N)
        if most is not None and len(at) > most:
            at = at[np.linspace(0, len(at) - 1, most).astype(np.int64)]
        return Examples(*(getattr(self, f.name)[at] for f in fields(self)))


def labelled(
    device: DeviceMinutes,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """A card's scorable rows [N], their alarm instants (ms UTC) and labels [N, H]."""
    ends = scorable(device.minute_M, device.rows_MC)
    at = alarm_instants_ms(device.minute_M, ends)
    positive, known = labels(at, device.outcome, device.last_ms)
    return ends, at, np.where(known, positive, -1).astype(np.float32)


def sample_examples(
    fleet: Fleet,
    split: Split,
    validation: bool,
    most: int,
    seed: int,
    augmented_share: float,
    folds: Mapping[str, int] | None = None,
) -> Examples:
    """At most about ``most`` windows of one side, half of them before failures if there are.

    ``folds`` names the fold of each card.

    Raises:
        RigcanaryError: when that side holds none.
    """
    rng = np.random.default_rng(seed + 17 * validation)
    chosen: list[tuple[DeviceMinutes, npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []
    healthy = dying = 0
    for device in fleet.devices():
        ends, at, y = labelled(device)
        mine = split.part(device.device, at)[int(validation)] & (y >= 0).any(axis=1)
        ends, y = ends[mine], y[mine]
        if len(ends):
            chosen.append((device, ends, y))
            dying += int((y[:, -1] == 1).sum())
            healthy += int((y[:, -1] != 1).sum())
    keep_dying = min(1.0, most / 2 / max(dying, 1))
    keep_healthy = min(1.0, (most - keep_dying * dying) / max(healthy, 1))
    parts: list[Examples] = []
    for device, ends, y in chosen:
        keep = rng.random(len(ends)) < np.where(y[:, -1] == 1, keep_dying, keep_healthy)
        kept, labels_NH = ends[keep], y[keep]
        sums = track(device)
        fold = (folds or {}).get(device.device, 0)
        for begin in range(0, len(kept), _CHUNK):
            chunk = kept[begin : begin + _CHUNK]
            minute_B = device.minute_M[chunk]
            rows, sums_BS = gather(device.minute_M, device.rows_MC, chunk), sums.at(minute_B)
            if not validation:
                sums_BS = short_histories(device, minute_B, sums_BS, rng)
                rows = augment(rows, rng, augmented_share)
            seen = see(rows, sums_BS)
            age_B = (minute_B + 1 - device.first_ms // MINUTE_MS).astype(np.float32)
            parts.append(
                Examples(
                    seen.x_BTF.astype(np.float16),
                    seen.h_BH,
                    age_B,
                    labels_NH[begin : begin + _CHUNK],
                    np.full(len(chunk), fold, np.int64),
                )
            )
    if not parts:
        side = "validation" if validation else "training"
        raise RigcanaryError(
            f"the {side} part of the data holds no window that can be scored; "
            "give a longer recording or more cards"
        )
    return Examples(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Examples))
    )
