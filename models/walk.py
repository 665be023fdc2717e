"""A card walked in event time through the worker's own hysteresis, and what thresholds do.

Scores belong to rising alarm instants; nothing after an instant has a part in its alarm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from models.counting import EARLIEST_MS, LONGEST_MS, Card, Count, Totals, count, totals
from stream.policy import Policy, RiskHysteresis

Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NEVER: Final = 2.0
"""A threshold that no score reaches."""
CANDIDATES: Final = 120


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What a threshold does on a set of cards."""

    false_alarms_per_device_day: float
    event_recall: float
    threshold: float


def walk(score_N: Scores, threshold: float, policy: Policy | None = None) -> Bools:
    """Whether an alarm is raised at each scoring: the worker's code, one score after the other."""
    hysteresis = RiskHysteresis.of(policy or Policy())
    return np.fromiter(
        (hysteresis.update(score, threshold) for score in score_N.tolist()),
        dtype=np.bool_,
        count=len(score_N),
    )


class FastWalk:
    """The same as :func:`walk` for many thresholds: the two rolling statistics are kept.

    An alarm is raised where the k-th largest of the last n scores reaches the threshold, and
    cleared where the largest of n falls under the clearing share of it.
    """

    def __init__(self, score_N: Scores, policy: Policy | None = None) -> None:
        policy = policy or Policy()
        n, k = policy.of_scorings, policy.raise_scorings
        # One row ahead of the scores, so that there is a window even without any.
        padded = np.r_[np.full(n, -np.inf), score_N]
        recent = np.sort(np.lib.stride_tricks.sliding_window_view(padded, n)[1:], axis=1)
        self.effective_N: Scores = recent[:, n - k]
        self._largest_N: Scores = recent[:, -1]
        self._largest_N[: n - 1] = np.inf  # nothing clears before n scorings
        self._clear_ratio = policy.clear_ratio

    def alarms(self, threshold: float) -> Bools:
        """Whether an alarm is raised at each scoring."""
        raised = self.effective_N >= threshold
        if not raised.any():
            return raised
        event = np.where(
            raised, 1, np.where(self._largest_N < threshold * self._clear_ratio, -1, 0)
        )
        at = np.maximum.accumulate(np.where(event != 0, np.arange(len(event)), -1))
        return np.asarray((at >= 0) & (event[at] == 1))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One policy's scores on one card, at rising instants (ms UTC)."""

    card: Card
    at_ms_N: Ints
    score_N: Scores


def count_at(traces: Sequence[Trace], walks: Sequence[FastWalk], threshold: float) -> list[Count]:
    """Each card's count at a threshold."""
    return [
        count(t.card, t.at_ms_N[w.alarms(threshold)].tolist())
        for t, w in zip(traces, walks, strict=True)
    ]


def candidates(traces: Sequence[Trace], walks: Sequence[FastWalk]) -> list[float]:
    """Thresholds worth trying, falling: each just above what a healthy stretch reached.

    An episode lasts at most 240 minutes, so the maxima of such stretches are where a further
    false alarm begins; all of the highest are tried, then ever fewer.
    """
    tops: list[Scores] = []
    for trace, fast in zip(traces, walks, strict=True):
        failure = trace.card.failure_ms
        healthy = np.ones(len(trace.at_ms_N), dtype=np.bool_)
        if failure is not None:
            healthy = trace.at_ms_N < failure - EARLIEST_MS
        value, block = fast.effective_N[healthy], trace.at_ms_N[healthy] // LONGEST_MS
        if len(value):
            starts = np.flatnonzero(np.r_[True, block[1:] != block[:-1]])
            tops.append(np.maximum.reduceat(value, starts))
    every = np.unique(np.concatenate(tops))[::-1] if tops else np.array([0.5])
    every = every[np.isfinite(every)]
    dense = CANDIDATES // 2
    if len(every) > CANDIDATES:
        spaced = np.geomspace(dense, len(every) - 1, CANDIDATES - dense).astype(int)
        every = np.r_[every[:dense], every[np.unique(spaced)]]
    return [float(v) for v in np.nextafter(every, np.inf)]


def operating_points(traces: Sequence[Trace]) -> list[OperatingPoint]:
    """What each of the candidate thresholds does, from the highest down."""
    walks = [FastWalk(t.score_N) for t in traces]
    cards = [t.card for t in traces]
    points = []
    for threshold in candidates(traces, walks):
        sums: Totals = totals(cards, count_at(traces, walks, threshold))
        points.append(
            OperatingPoint(sums.false_alarms_per_device_day, sums.event_recall, threshold)
        )
    return points


def threshold_for(points: Sequence[OperatingPoint], budget: float) -> float:
    """The lowest threshold down to which every higher one kept within the budget.

    Without any, :data:`NEVER`. ``budget`` is false alarms a device-day.
    """
    chosen = NEVER
    for point in sorted(points, key=lambda p: -p.threshold):
        if point.false_alarms_per_device_day > budget:
            break
        chosen = point.threshold
    return chosen
