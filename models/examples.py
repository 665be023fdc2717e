"""Windows to learn from: all that come before failures, healthy ones thinned out."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.errors import RigcanaryError
from models.augment import augment
from models.dataset import Fleet
from models.features import features
from models.split import Split
from models.windows import DeviceMinutes, alarm_instants_ms, gather, labels, scorable

_CHUNK: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Windows as features [N, T, F] (half precision) with labels [N, H]: 1, 0, −1 unknown."""

    x_NTF: npt.NDArray[np.float16]
    y_NH: npt.NDArray[np.float32]


def labelled(
    device: DeviceMinutes,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """A card's scorable rows [N], their alarm instants (ms UTC) and labels [N, H]."""
    ends = scorable(device.minute_M, device.rows_MC)
    at = alarm_instants_ms(device.minute_M, ends)
    positive, known = labels(at, device.outcome, device.last_ms)
    return ends, at, np.where(known, positive, -1).astype(np.float32)


def sample_examples(
    fleet: Fleet, split: Split, validation: bool, most: int, seed: int, augmented_share: float
) -> Examples:
    """At most about ``most`` windows of one side, half of them before failures if there are.

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
    xs: list[npt.NDArray[np.float16]] = []
    ys: list[npt.NDArray[np.float32]] = []
    for device, ends, y in chosen:
        keep = rng.random(len(ends)) < np.where(y[:, -1] == 1, keep_dying, keep_healthy)
        for begin in range(0, int(keep.sum()), _CHUNK):
            rows = gather(device.minute_M, device.rows_MC, ends[keep][begin : begin + _CHUNK])
            if not validation:
                rows = augment(rows, rng, augmented_share)
            xs.append(features(rows).astype(np.float16))
        ys.append(y[keep])
    if not xs:
        side = "validation" if validation else "training"
        raise RigcanaryError(
            f"the {side} part of the data holds no window that can be scored; "
            "give a longer recording or more cards"
        )
    return Examples(np.concatenate(xs), np.concatenate(ys))
