"""Which cards and which times train, and which validate: disjoint in both.

The split keeps validation honest: its cards are not in training, and (unless ``by_time`` is
off) its windows begin at least 240 minutes after the last training window ended, so that
neither rows nor the period that a label looks into are shared.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.errors import RigcanaryError
from contract.minute import MINUTE_MS, WINDOW_MINUTES
from models.windows import HORIZONS_MINUTES

GAP_MS: Final = max(HORIZONS_MINUTES) * MINUTE_MS
Span = tuple[str, str, int, int]
"""Device, node, first and last ms of a card's recording."""
NODES_TO_SPLIT: Final = 8
"""From this many rigs on, whole rigs go to one side."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which cards validate, and the instant that parts the times (None: whole recordings)."""

    validation: frozenset[str]
    train_until_ms: int | None

    @property
    def validate_from_ms(self) -> int | None:
        """Start of the earliest validation window's first minute."""
        return None if self.train_until_ms is None else self.train_until_ms + GAP_MS

    def part(
        self, device: str, at_ms_N: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which windows that end at ``at_ms_N`` train, and which validate."""
        nothing = np.zeros(len(at_ms_N), dtype=np.bool_)
        if self.train_until_ms is None or self.validate_from_ms is None:
            every = np.ones(len(at_ms_N), dtype=np.bool_)
            return (nothing, every) if device in self.validation else (every, nothing)
        if device in self.validation:
            return nothing, at_ms_N - WINDOW_MINUTES * MINUTE_MS >= self.validate_from_ms
        return at_ms_N <= self.train_until_ms, nothing


def choose_split(
    devices: list[Span],
    seed: int,
    validation_share: float = 0.3,
    time_share: float | None = 0.6,
) -> Split:
    """Split cards given as (device, node, first_ms, last_ms).

    Whole rigs go to one side where there are enough of them, since cards of a rig share air and
    supply; single cards otherwise. ``time_share`` None splits by cards only.

    Raises:
        RigcanaryError: with fewer than two cards.
    """
    group_of, groups = _groups(devices, seed)
    count = min(max(1, round(len(groups) * validation_share)), len(groups) - 1)
    chosen = set(groups[:count])
    validation = frozenset(device for device, group in group_of.items() if group in chosen)
    cut = None
    if time_share is not None:
        first, last = min(d[2] for d in devices), max(d[3] for d in devices)
        cut = first + round((last - first) * time_share)
    return Split(validation, cut)


def choose_folds(devices: list[Span], seed: int, folds: int) -> dict[str, int]:
    """The fold, 0 to ``folds`` − 1, of each card; rigs stay together where there are enough.

    Raises:
        RigcanaryError: with fewer than two cards.
    """
    group_of, groups = _groups(devices, seed)
    fold_of = {group: i % folds for i, group in enumerate(groups)}
    return {device: fold_of[group] for device, group in group_of.items()}


def _groups(devices: list[Span], seed: int) -> tuple[dict[str, str], list[str]]:
    """What is never parted, by device, and all of it in a drawn order."""
    nodes = {node for _, node, _, _ in devices}
    by_node = len(nodes) >= NODES_TO_SPLIT
    group_of = {device: node if by_node else device for device, node, _, _ in devices}
    groups = sorted(set(group_of.values()))
    if len(groups) < 2:
        raise RigcanaryError("training needs at least two cards, to validate on another one")
    order = np.random.default_rng(seed).permutation(len(groups))
    return group_of, [groups[i] for i in order]
