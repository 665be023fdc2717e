"""Every minute of the validation cards scored, for calibration and thresholds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import MINUTE_MS, WINDOW_MINUTES
from models.baseline import Baselines
from models.counting import DAY_MS, Card, card_of
from models.dataset import Fleet
from models.examples import labelled
from models.features import features
from models.forward import Forward
from models.split import Span, Split
from models.windows import DeviceMinutes, gather

_CHUNK: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """Every scorable validation minute of one card: raw outputs by policy, labels."""

    card: Card
    at_ms_N: npt.NDArray[np.int64]
    y_NH: npt.NDArray[np.float32]
    logits_NH: npt.NDArray[np.float32]
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
    forward: Forward,
    baselines: Baselines,
) -> Iterator[Walked]:
    """Score every validation minute, card by card."""
    for device in fleet.devices():
        if device.device not in drawn:
            continue
        ends, at, y = labelled(device)
        mine = split.part(device.device, at)[1]
        if not mine.any():
            continue
        ends, at, y = ends[mine], at[mine], y[mine]
        logits, scores = [], []
        for i in range(0, len(ends), _CHUNK):
            rows = gather(device.minute_M, device.rows_MC, ends[i : i + _CHUNK])
            x = features(rows)
            logits.append(forward(x)[0])
            scores.append(baselines.scores(rows, x))
        # The card's recording begins for validation with its first window.
        since = int(at[0]) // MINUTE_MS - WINDOW_MINUTES
        kept = device.minute_M >= since
        part = DeviceMinutes(
            device.device, device.node, device.minute_M[kept], device.rows_MC[kept], device.outcome
        )
        joined = {name: np.concatenate([s[name] for s in scores]) for name in scores[0]}
        yield Walked(card_of(part), at, y, np.concatenate(logits), joined)
