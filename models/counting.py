"""How alarms are counted (contracts section 5), as pure functions over one card at a time.

Times are ms UTC. An alarm's instant is the end of the last minute used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import MINUTE_MS
from models.windows import DeviceMinutes

EARLIEST_MS: Final = 240 * MINUTE_MS
"""An episode that starts longer than this before a failure did not see it coming."""
LATEST_MS: Final = 5 * MINUTE_MS
"""One that starts closer to the failure than this came too late to move a job."""
QUIET_MS: Final = 60 * MINUTE_MS
LONGEST_MS: Final = 240 * MINUTE_MS
DAY_MS: Final = 1440 * MINUTE_MS
MIN_ROWS_BEFORE: Final = 60


def episode_starts(alarm_ms: Iterable[int]) -> list[int]:
    """Starts of the episodes that rising ``alarm_ms`` make.

    An episode closes after 60 minutes without alarm or 240 minutes after its start; an alarm
    at that very instant starts the next one.
    """
    starts: list[int] = []
    newest = 0
    for at in alarm_ms:
        if not starts or at - newest >= QUIET_MS or at - starts[-1] >= LONGEST_MS:
            starts.append(at)
        newest = at
    return starts


@dataclass(frozen=True, slots=True)
class Card:
    """What counting needs to know of a card: its first row's start, its last row's end, its end.

    ``judged`` is False for a failure with fewer than 60 minute rows before F − 5 min.
    """

    device: str
    first_ms: int
    last_ms: int
    failure_ms: int | None
    kind: str
    judged: bool

    @property
    def device_days(self) -> float:
        """Days in which an alarm would be false, from 60 minutes after the first row on."""
        end = self.last_ms
        if self.failure_ms is not None:
            end = min(end, self.failure_ms - EARLIEST_MS)
        return max(0, end - self.first_ms - QUIET_MS) / DAY_MS


def card_of(device: DeviceMinutes) -> Card:
    """The card behind minute rows."""
    failure = device.outcome.failure_ms
    judged = True
    if failure is not None:
        ends = (device.sampled_M + 1) * MINUTE_MS
        judged = int((ends <= failure - LATEST_MS).sum()) >= MIN_ROWS_BEFORE
    return Card(
        device.device, device.first_ms, device.last_ms, failure, device.outcome.kind, judged
    )


@dataclass(frozen=True, slots=True)
class Count:
    """What became of one card's alarms. ``lead_ms`` is None unless the failure was caught."""

    false: int = 0
    late: int = 0
    lead_ms: int | None = None


def count(card: Card, alarm_ms: Iterable[int]) -> Count:
    """Judge the alarms of one card; ``alarm_ms`` must rise."""
    failure = card.failure_ms
    if failure is None:
        return Count(false=len(episode_starts(alarm_ms)))
    false = late = 0
    lead: int | None = None
    for start in episode_starts(at for at in alarm_ms if at < failure):
        if start < failure - EARLIEST_MS:
            false += 1
        elif start <= failure - LATEST_MS:
            lead = failure - start if lead is None else lead
        else:
            late += 1
    if not card.judged:
        return Count(false=false)
    return Count(false, late, lead)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over cards: failures that could be judged, caught ones, false episodes, days."""

    failures: int
    caught: int
    false: int
    late: int
    device_days: float

    @property
    def event_recall(self) -> float:
        """Caught over judged failures, 0 without any."""
        return self.caught / self.failures if self.failures else 0.0

    @property
    def precision(self) -> float:
        """Caught over caught and false, 0 without alarms."""
        alarms = self.caught + self.false
        return self.caught / alarms if alarms else 0.0

    @property
    def false_alarms_per_device_day(self) -> float:
        """False episodes a healthy device-day, 0 without days."""
        return self.false / self.device_days if self.device_days else 0.0


def totals(cards: list[Card], counts: list[Count]) -> Totals:
    """Add up what :func:`count` said of each card."""
    return Totals(
        failures=sum(c.failure_ms is not None and c.judged for c in cards),
        caught=sum(c.lead_ms is not None for c in counts),
        false=sum(c.false for c in counts),
        late=sum(c.late for c in counts),
        device_days=sum(c.device_days for c in cards),
    )


def confidence95(
    cards: list[Card], counts: list[Count], resamples: int = 500, seed: int = 0
) -> dict[str, list[float]]:
    """95 % intervals by bootstrap over devices: recall, precision, false alarms a device-day."""
    table = np.array(
        [
            (c.failure_ms is not None and c.judged, n.lead_ms is not None, n.false, c.device_days)
            for c, n in zip(cards, counts, strict=True)
        ],
        dtype=np.float64,
    ).reshape(len(cards), 4)
    if not len(cards):
        return {name: [0.0, 0.0] for name in _INTERVALS}
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(cards), np.full(len(cards), 1 / len(cards)), size=resamples)
    failures, caught, false, days = (weights @ table).T

    def interval(upper: npt.NDArray[np.float64], lower: npt.NDArray[np.float64]) -> list[float]:
        value = upper[lower > 0] / lower[lower > 0]
        return [float(v) for v in np.percentile(value, [2.5, 97.5])] if len(value) else [0.0, 0.0]

    return dict(
        zip(
            _INTERVALS,
            (
                interval(caught, failures),
                interval(caught, caught + false),
                interval(false, days),
            ),
            strict=True,
        )
    )


_INTERVALS: Final = ("event_recall", "precision", "false_alarms_per_device_day")
