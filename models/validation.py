"""Every minute of the validation cards scored, for calibration and thresholds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from contract.minute import MINUTE_MS, WINDOW_MINUTES
from models.card_scores import score_cards
from models.counting import DAY_MS, Card, card_of
from models.dataset import Fleet
from models.examples import labelled
from models.split import Span, Split
from models.windows import DeviceMinutes


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """Every scorable validation minute of one card: logits of network and ensemble [N, H],
    baselines' scores by name, labels [N, H].
    """

    card: Card
    at_ms_N: npt.NDArray[np.int64]
    y_NH: npt.NDArray[np.float32]
    network_NH: npt.NDArray[np.float32]
    ensemble_NH: npt.NDArray[np.float32]
    baselines: dict[str, npt.NDArray[np.float64]]


def draw_cards(spans: list[Span], split: Split, most_days: float, seed: int) -> frozenset[str]:
    """Validation cards, at random, until their recordings reach ``most_days`` device-days."""
    own = [(device, last - first) for device, _, first, last in spans if device in split.validation]
    order = np.random.default_rng(seed).permutation(len(own))
    total = np.cumsum([own[i][1] / DAY_MS for i in order])
    count = int(np.searchsorted(total, most_days)) + 1
    return frozenset(own[i][0] for i in order[:count])


def walk_validation(
    fleet: Fleet,
    split: Split,
    drawn: frozenset[str],
    weights: dict[str, Any],
    baselines: dict[str, Any],
) -> Iterator[Walked]:
    """Score every validation minute of the cards that were drawn, card by card."""
    own = (d for d in fleet.devices() if d.device in drawn)
    for device, scores in score_cards(own, weights, baselines):
        _, at, y = labelled(device)
        mine = split.part(device.device, at)[1]
        if not mine.any():
            continue
        at = at[mine]
        # The card's recording begins for validation with its first window.
        kept = device.minute_M >= int(at[0]) // MINUTE_MS - WINDOW_MINUTES
        part = DeviceMinutes(
            device.device, device.node, device.minute_M[kept], device.rows_MC[kept], device.outcome
        )
        yield Walked(
            card_of(part),
            at,
            y[mine],
            scores.network_NH[mine],
            scores.ensemble_NH[mine],
            {name: score[mine] for name, score in scores.baselines.items()},
        )
