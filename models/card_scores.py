"""Every scorable minute of a card scored, as training's validation and ``evaluate`` need it.

Long recordings take two processes; the order and the figures are those of one.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.minute import MINUTE_MS
from models.baseline import NAMES, Baselines
from models.ensemble import ensemble_logits
from models.forward import Forward
from models.history import track
from models.seen import Seen, see
from models.windows import DeviceMinutes, alarm_instants_ms, gather, scorable

_CHUNK: Final = 512
PROCESSES: Final = min(4, os.cpu_count() or 1)
IN_PROCESS_ROWS: Final = 60_000
"""Up to so many minute rows no processes are started: that alone takes seconds."""
Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CardScores:
    """A card's scored minutes, N of them: alarm instants (ms UTC), the network's logits, the
    ensemble's logits, both [N, H], and the baselines' scores by name.
    """

    at_ms_N: Ints
    network_NH: npt.NDArray[np.float32]
    ensemble_NH: npt.NDArray[np.float32]
    baselines: dict[str, Scores]


def seen_windows(device: DeviceMinutes, ends: Ints) -> Iterator[Seen]:
    """The windows that end at the rows ``ends`` of a card, in batches."""
    sums = track(device)
    first = device.first_ms // MINUTE_MS
    for at in range(0, len(ends), _CHUNK):
        chunk = ends[at : at + _CHUNK]
        minute_B = device.minute_M[chunk]
        age_B = (minute_B + 1 - first).astype(np.float32)
        yield see(gather(device.minute_M, device.rows_MC, chunk), sums.at(minute_B), age_B)


def score_card(device: DeviceMinutes, forward: Forward, baselines: Baselines) -> CardScores:
    """Score every scorable minute of a card."""
    ends = scorable(device.minute_M, device.rows_MC)
    network, ensemble = [np.empty((0, 3), np.float32)], [np.empty((0, 3), np.float32)]
    parts: dict[str, list[Scores]] = {name: [np.empty(0)] for name in NAMES}
    for seen in seen_windows(device, ends):
        logits_BH, _ = forward(seen.x_BTF)
        tree_B = baselines.tree_logit(seen)
        network.append(logits_BH)
        ensemble.append(ensemble_logits(logits_BH, tree_B))
        for name, score in baselines.scores(seen, tree_B).items():
            parts[name].append(score)
    return CardScores(
        alarm_instants_ms(device.minute_M, ends),
        np.concatenate(network),
        np.concatenate(ensemble),
        {name: np.concatenate(part) for name, part in parts.items()},
    )


_own: list[tuple[Forward, Baselines]] = []


def _start(weights: dict[str, Any], arrays: dict[str, Any]) -> None:
    _own[:] = [(Forward(weights), Baselines.from_arrays(arrays))]


def _score(device: DeviceMinutes) -> CardScores:
    return score_card(device, *_own[0])


def score_cards(
    devices: Iterable[DeviceMinutes], weights: dict[str, Any], arrays: dict[str, Any]
) -> Iterator[tuple[DeviceMinutes, CardScores]]:
    """Each card with its scores, in order; at most a few cards are in memory at once.

    ``weights`` and ``arrays`` are those of a model folder (:class:`models.card.Model`).

    Raises:
        KeyError: when an array of the baselines is missing.
    """
    forward, baselines = Forward(weights), Baselines.from_arrays(arrays)
    rest = iter(devices)
    rows = 0
    for device in rest:
        yield device, score_card(device, forward, baselines)
        rows += len(device.minute_M)
        if rows > IN_PROCESS_ROWS and PROCESSES > 1:
            break
    else:
        return
    # A forked child of a process that holds TensorFlow's threads can hang: start afresh.
    context = multiprocessing.get_context("forkserver")
    waiting: deque[tuple[DeviceMinutes, Future[CardScores]]] = deque()
    with ProcessPoolExecutor(PROCESSES, context, _start, (weights, arrays)) as pool:
        for device in rest:
            waiting.append((device, pool.submit(_score, device)))
            if len(waiting) > 2 * PROCESSES:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
