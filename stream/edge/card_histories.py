"""The cards' histories between two scorings: sums of numbers in the node's state, as text.

What the numbers mean is the model's (``Predictor.enter``); here they are carried, once a minute.
"""

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream.edge.shared import Predictor

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Of one node's minute: the devices, their windows [D, T, C], their histories as stored."""

    key: str
    devices: tuple[str, ...]
    stored: tuple[str, ...]


def unpacked(predictor: Predictor, stored: Sequence[str]) -> Array:
    """Sums float32 [B, S]; zeros where a history is empty or of another version."""
    sums_BS = np.zeros((len(stored), predictor.history_sums), np.float32)
    prefix = predictor.history_version + ":"
    size = sums_BS.shape[1] * 4
    for b, text in enumerate(stored):
        if text.startswith(prefix):
            data = base64.b64decode(text[len(prefix) :])
            if len(data) == size:
                sums_BS[b] = np.frombuffer(data, "<f4")
    return sums_BS


def packed(predictor: Predictor, sums_BS: Array) -> list[str]:
    """The inverse of :func:`unpacked`."""
    prefix = predictor.history_version + ":"
    rows = sums_BS.astype("<f4", copy=False)
    return [prefix + base64.b64encode(row.tobytes()).decode("ascii") for row in rows]


def entered(predictor: Predictor, jobs: Sequence[Histories], rows_BTC: Array) -> Array:
    """Each job's histories after its minute: float32 [B, S], jobs one after the other.

    A batch may hold several minutes of a node, in order: each goes on from the one before.
    """
    sums_BS = unpacked(predictor, [text for job in jobs for text in job.stored])
    starts = np.cumsum([0, *(len(job.devices) for job in jobs)])
    turns: Counter[str] = Counter()
    rounds: list[list[int]] = []
    for index, job in enumerate(jobs):
        turn = turns[job.key]
        turns[job.key] += 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(index)
    newest: dict[tuple[str, str], int] = {}
    for round_ in rounds:
        places = []
        for index in round_:
            for offset, device in enumerate(jobs[index].devices):
                at = int(starts[index]) + offset
                before = newest.get((jobs[index].key, device))
                if before is not None:
                    sums_BS[at] = sums_BS[before]
                newest[jobs[index].key, device] = at
                places.append(at)
        if places:
            sums_BS[places] = predictor.enter(sums_BS[places], rows_BTC[places])
    return sums_BS
