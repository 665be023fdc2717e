"""Formulas: the best checkpoint interval, and goodput where nothing queues.

Young, "A first order approximation to the optimum checkpoint interval" (CACM 1974); Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps" (FGCS 2006).
"""

import math

from economics.fleet import DAY_SECONDS, Fleet


def young_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """√(2 δ M): the best interval to first order."""
    return math.sqrt(2 * checkpoint_seconds * mtbf_seconds)


def daly_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Daly's estimate of higher order; the mean time between failures where δ is not under 2 M."""
    if checkpoint_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = checkpoint_seconds / (2 * mtbf_seconds)
    first = math.sqrt(2 * checkpoint_seconds * mtbf_seconds)
    return first * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def job_mtbf_seconds(fleet: Fleet) -> float:
    """Mean time between failures of a card that the job runs on; infinite without failures."""
    rate = fleet.world * fleet.failures_per_card_second
    return math.inf if rate == 0 else 1 / rate


def surprise_mtbf_seconds(fleet: Fleet) -> float:
    """The same for failures that nobody foresaw: what checkpoints are for."""
    rate = fleet.world * fleet.failures_per_card_second * (1 - fleet.recall)
    return math.inf if rate == 0 else 1 / rate


def goodput(fleet: Fleet) -> float:
    """Share of the time that goes into kept steps, with a spare card always at hand.

    A failure without warning costs the steps since the last checkpoint (uniform: half an
    interval) and a restart; a foreseen one, and a false alarm, a planned move. Exact for
    exponential failures up to terms of second order in interval over mean time between failures.
    """
    interval, cost = fleet.checkpoint_interval_seconds, fleet.checkpoint_seconds
    failures = fleet.world * fleet.failures_per_card_second
    surprise, foreseen = failures * (1 - fleet.recall), failures * fleet.recall
    alarms = fleet.world * fleet.false_alarms_per_device_day / DAY_SECONDS
    cycle = interval + cost
    # Seconds down for each second up, so that the share up is 1 / (1 + down).
    down = surprise * (cycle / 2 + fleet.restart_seconds) + (foreseen + alarms) * fleet.move_seconds
    return interval / cycle / (1 + down)


def card_availability(fleet: Fleet, mean_repair_seconds: float) -> float:
    """Share of the time that a card is in service: an alternating renewal process."""
    down = fleet.failures_per_card_second * mean_repair_seconds
    down += fleet.false_alarms_per_device_day / DAY_SECONDS * fleet.quarantine_hours * 3600
    return 1 / (1 + down)
