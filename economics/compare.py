"""With and without a predictor, the interval and the threshold that pay best."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from economics import closed_forms
from economics.fleet import Fleet
from economics.simulate import mean_repair_seconds, replicate

REPLICATIONS: Final = 20
_T95: Final = 2.093  # Student's t, 19 degrees of freedom: for twenty replications


def _interval95(values: Sequence[float]) -> list[float]:
    mean = float(np.mean(values))
    if len(values) < 2:
        return [mean, mean]
    half = _T95 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return [mean - half, mean + half]


def scenario(fleet: Fleet, seeds: Sequence[int]) -> dict[str, Any]:
    """Means over the replications with intervals, and the closed forms beside them."""
    years = replicate(fleet, seeds)
    good = [year.goodput for year in years]
    hours = fleet.world * fleet.days * 24
    samples = hours * 3600 * fleet.samples_per_card_second * float(np.mean(good))
    return {
        "goodput": float(np.mean(good)),
        "goodput_ci95": _interval95(good),
        "goodput_closed_form": closed_forms.goodput(fleet),
        "card_availability": float(np.mean([y.card_availability for y in years])),
        "card_availability_closed_form": closed_forms.card_availability(
            fleet, mean_repair_seconds(fleet)
        ),
        "failures_per_run": float(np.mean([y.failures for y in years])),
        "foreseen_per_run": float(np.mean([y.foreseen for y in years])),
        "false_alarms_per_run": float(np.mean([y.false_alarms for y in years])),
        "waiting_share": float(np.mean([y.waiting_seconds for y in years])) / (fleet.days * 86400),
        "cost_per_million_samples": (
            hours * fleet.price_per_card_hour / (samples / 1e6) if samples > 0 else None
        ),
    }


def best_interval(fleet: Fleet) -> dict[str, float]:
    """The checkpoint interval with the best goodput, by search over the closed form; Young's and
    Daly's beside it, for failures that nobody foresees.
    """
    mtbf = closed_forms.surprise_mtbf_seconds(fleet)
    longest = min(mtbf, fleet.days * 86_400)
    grid = np.geomspace(max(fleet.checkpoint_seconds, 1.0), max(longest, 2.0), 400)
    found = [
        closed_forms.goodput(replace(fleet, checkpoint_interval_seconds=float(s))) for s in grid
    ]
    at = int(np.argmax(found))
    finite = min(mtbf, 1e12)
    return {
        "seconds": float(grid[at]),
        "goodput": float(found[at]),
        "young_seconds": closed_forms.young_seconds(fleet.checkpoint_seconds, finite),
        "daly_seconds": closed_forms.daly_seconds(fleet.checkpoint_seconds, finite),
    }


def best_threshold(
    fleet: Fleet, curve: Sequence[dict[str, float]], seeds: Sequence[int]
) -> dict[str, float]:
    """The point of an ``evaluate`` curve whose goodput is best, in the simulation.

    Points are tried by the closed form first; the ten best are simulated with the same seeds.
    """

    def at(point: dict[str, float]) -> Fleet:
        return replace(
            fleet,
            recall=point["event_recall"],
            false_alarms_per_device_day=point["false_alarms_per_device_day"],
        )

    ranked = sorted(curve, key=lambda point: -closed_forms.goodput(at(point)))[:10]
    scored = [
        (float(np.mean([y.goodput for y in replicate(at(point), seeds)])), point)
        for point in ranked
    ]
    good, point = max(scored, key=lambda pair: pair[0])
    return {"goodput": good, **point}


def compare(
    fleet: Fleet, curve: Sequence[dict[str, float]] = (), replications: int = REPLICATIONS
) -> dict[str, Any]:
    """The object that ``rigcanary economics --json`` prints."""
    seeds = range(replications)
    without, having = scenario(fleet.without_predictor(), seeds), scenario(fleet, seeds)
    hours = fleet.world * fleet.days * 24
    saved = (having["goodput"] - without["goodput"]) * hours
    result = {
        "without": without,
        "with": having,
        "saved_card_hours": saved,
        "saved_money": saved * fleet.price_per_card_hour,
        "best_interval": best_interval(fleet),
        "replications": replications,
    }
    if curve:
        result["best_threshold"] = best_threshold(fleet, curve, seeds)
    return result
