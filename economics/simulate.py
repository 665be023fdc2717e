"""A simulated year, event by event: cards fail, are moved off, repaired; the job waits for cards.

A queue of events, one heap; a thousand cards over a year take a fraction of a second.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from economics.fleet import DAY_SECONDS, Fleet

_Z90: Final = 1.2815515655446004  # the normal distribution's 0.9 quantile
_NEVER: Final = 1e-30
"""Events a second: under it none will come in the age of the universe."""
FAILS, WARNED, FALSE, BACK = range(4)


@dataclass(frozen=True, slots=True)
class Year:
    """What one simulated stretch came to; times are seconds, shares are of the whole time."""

    goodput: float
    card_availability: float
    failures: int
    foreseen: int
    false_alarms: int
    waiting_seconds: float
    lost_seconds: float


def mean_repair_seconds(fleet: Fleet) -> float:
    """Mean of the lognormal repair time."""
    sigma = _sigma(fleet)
    return fleet.repair_days_median * DAY_SECONDS * math.exp(sigma**2 / 2)


def _sigma(fleet: Fleet) -> float:
    return math.log(fleet.repair_days_p90 / fleet.repair_days_median) / _Z90


def simulate(fleet: Fleet, seed: int) -> Year:
    """One stretch of ``fleet.days``, the same for the same seed."""
    return _Run(fleet, seed).run()


def replicate(fleet: Fleet, seeds: Sequence[int]) -> list[Year]:
    """Several stretches."""
    return [simulate(fleet, seed) for seed in seeds]


class _Run:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.rng = np.random.default_rng([seed, fleet.cards])
        self.end = fleet.days * DAY_SECONDS
        base = fleet.failures_per_device_month
        bad = self.rng.random(fleet.cards) < fleet.bad_share
        scale = np.where(bad, fleet.bad_factor, 1.0)
        month = 365.25 / 12 * DAY_SECONDS
        self.fail_rate = base / month * scale
        self.in_service = np.ones(fleet.cards, dtype=np.bool_)
        self.at_work = np.zeros(fleet.cards, dtype=np.bool_)
        self.at_work[: fleet.world] = True
        self.epoch = np.zeros(fleet.cards, dtype=np.int64)
        self.events: list[tuple[float, int, int, int]] = []
        self.down_since = np.full(fleet.cards, np.nan)
        self.card_down = 0.0
        self.counts = {FAILS: 0, WARNED: 0, FALSE: 0}
        self.now = 0.0
        self.working_from = 0.0  # the job does steps from here on
        self.waits = False
        self.kept = self.waited = self.lost = 0.0

    def run(self) -> Year:
        for card in range(self.fleet.cards):
            self._plan(card, 0.0)
        while self.events and self.events[0][0] < self.end:
            self.now, kind, card, epoch = heapq.heappop(self.events)
            if epoch != self.epoch[card]:
                continue
            if kind == BACK:
                self._back(card)
            else:
                self._away(card, kind)
        self._work_until(self.end)
        if self.waits:
            self.waited += self.end - self.working_from
        down = self.card_down + float(np.nansum(self.end - self.down_since[~self.in_service]))
        total = self.fleet.cards * self.end
        return Year(
            goodput=self.kept / self.end,
            card_availability=1 - down / total,
            failures=self.counts[FAILS] + self.counts[WARNED],
            foreseen=self.counts[WARNED],
            false_alarms=self.counts[FALSE],
            waiting_seconds=self.waited,
            lost_seconds=self.lost,
        )

    def _plan(self, card: int, now: float) -> None:
        """A card in service: its next failure or false alarm, whichever comes first."""
        fails, alarms = self.fail_rate[card], self.fleet.false_alarms_per_device_day / DAY_SECONDS
        rate = fails + alarms
        if rate < _NEVER:
            return
        at = now + self.rng.exponential(1 / rate)
        kind = FALSE
        if self.rng.random() < fails / rate:
            kind = WARNED if self.rng.random() < self.fleet.recall else FAILS
        heapq.heappush(self.events, (at, kind, card, int(self.epoch[card])))

    def _away(self, card: int, kind: int) -> None:
        fleet = self.fleet
        self.counts[kind] += 1
        self.in_service[card] = False
        self.down_since[card] = self.now
        self.epoch[card] += 1
        if kind == FALSE:
            out = fleet.quarantine_hours * 3600
        else:
            normal = float(self.rng.standard_normal())
            out = fleet.repair_days_median * DAY_SECONDS * math.exp(_sigma(fleet) * normal)
        heapq.heappush(self.events, (self.now + out, BACK, card, int(self.epoch[card])))
        if not self.at_work[card]:
            return
        self.at_work[card] = False
        running = not self.waits
        if running:
            self._work_until(self.now)
            if kind == FAILS:
                self._lose()
        pause = fleet.restart_seconds if kind == FAILS else fleet.move_seconds
        spare = np.flatnonzero(self.in_service & ~self.at_work)
        if len(spare):
            self.at_work[spare[0]] = True
            if running:
                self.working_from = max(self.working_from, self.now + pause)
        elif running:
            self.waits = True
            self.working_from = self.now

    def _back(self, card: int) -> None:
        self.in_service[card] = True
        self.card_down += self.now - self.down_since[card]
        self.down_since[card] = np.nan
        self.epoch[card] += 1
        self._plan(card, self.now)
        if self.waits and int(self.at_work.sum()) < self.fleet.world:
            self.at_work[card] = True
            if int(self.at_work.sum()) == self.fleet.world:
                self.waits = False
                self.waited += self.now - self.working_from
                self.working_from = self.now + self.fleet.restart_seconds

    def _work_until(self, at: float) -> None:
        """Count the kept share of the work since the job last began."""
        if self.waits or at <= self.working_from:
            return
        cycle = self.fleet.checkpoint_interval_seconds + self.fleet.checkpoint_seconds
        worked = at - self.working_from
        whole = math.floor(worked / cycle)
        rest = min(worked - whole * cycle, self.fleet.checkpoint_interval_seconds)
        self.kept += whole * self.fleet.checkpoint_interval_seconds + rest
        self._unsaved = rest
        self.working_from = at

    def _lose(self) -> None:
        """A failure without warning: the steps since the last checkpoint are done again."""
        self.kept -= self._unsaved
        self.lost += self._unsaved
        self._unsaved = 0.0

    _unsaved: float = 0.0
