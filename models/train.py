"""Training: a fleet data set → a model folder.

Calibration and thresholds come from walking every minute of the validation cards, as
``evaluate`` walks them.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.errors import RigcanaryError
from models.baseline import NAMES
from models.card import (
    CARD_SCHEMA,
    SERVED,
    Model,
    calibrated,
    read_model,
    version_of,
    write_model,
)
from models.counting import DAY_MS, confidence95, totals
from models.dataset import Fleet
from models.ensemble import DECISION_HEAD, DECISION_HORIZON_MINUTES
from models.examples import Examples, sample_examples
from models.features import FEATURES_VERSION
from models.fit import FitOptions
from models.members import Members, fit_members
from models.metrics import fit_platt, window_figures
from models.series import FEATURES
from models.split import Span, Split, choose_folds, choose_split
from models.validation import Walked, draw_cards, walk_validation
from models.walk import FastWalk, Trace, count_at, operating_points, threshold_for
from models.windows import HORIZONS_MINUTES

FOLDS: Final = 3
LONG_DAYS: Final = 7.0
"""Recordings from this length on are split by time as well; shorter ones only into folds."""
BUDGETS: Final = (0.033, 0.003)
_WINDOW_HEAD: Final = HORIZONS_MINUTES.index(60)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Everything that training depends on beside the data; ``time_share`` None: split by cards
    only. ``validation_days`` bounds the device-days that are walked for thresholds, cards drawn
    at random. ``folds`` from 2 on: as many models, each judged on the cards that it did not see,
    set calibration and thresholds, and the one that is kept learns from all cards; recordings of
    :data:`LONG_DAYS` and more are split by cards and time instead. ``base`` names
    the model that training goes on from, "" none. Thresholds aim at ``budget_share`` of a budget:
    less than 1 for a model that is to serve fleets other than the validation's. ``origin`` says
    in the card what the data are.
    """

    seed: int = 0
    max_windows: int = 40_000
    validation_share: float = 0.3
    time_share: float | None = 0.6
    augmented_share: float = 0.4
    validation_days: float = 1000.0
    folds: int = 0
    base: str = ""
    budget_share: float = 1.0
    origin: str = ""
    fit: FitOptions = field(default_factory=FitOptions)


def train(
    datasets: Sequence[Path],
    out: Path,
    options: TrainOptions | None = None,
    say: Say = lambda _: None,
    command: str = "",
    validation: Sequence[Path] = (),
) -> dict[str, Any]:
    """Train on ``datasets``, write the model folder ``out``, return its card.

    Without ``validation`` data sets a part of ``datasets`` is split off to validate.

    Raises:
        ConfigError: when a data set or ``out`` cannot be used.
        RigcanaryError: when there is nothing to learn from, or training diverged.
    """
    options = options or TrainOptions()
    base = read_model(options.base) if options.base else None
    with Fleet(*datasets) as fleet, Fleet(*validation or datasets) as other:
        say("reading telemetry and reducing it to minute rows")
        sides = Sides(fleet, other if validation else fleet, spans_of(fleet), options)
        learn = _with_folds if sides.folds else _with_split
        members, walked, training = learn(sides, options, base, say)
        arrays = members.arrays
        card = _card(sides, options, members, arrays, walked, training, command)
        card["base"] = None if base is None else base.version
        write_model(out, card, members.weights, arrays)
    return card


Learnt = tuple[Members, list[Walked], Examples]


def _with_split(sides: "Sides", options: TrainOptions, base: Model | None, say: Say) -> Learnt:
    split = sides.split
    say(f"{len(sides.spans)} cards, {len(split.validation)} of them validate")
    training = sample_examples(
        sides.fleet, split, False, options.max_windows, options.seed, options.augmented_share
    )
    watching = sample_examples(
        sides.watched, split, True, options.max_windows // 4, options.seed, 0.0
    )
    _check(training, "training")
    _check(watching, "validation")
    say(f"{len(training.x_NTF)} training windows, {len(FEATURES)} features a minute")
    members = fit_members(training, watching, options.fit, options.seed, say, base)
    say("walking the validation cards for calibration and thresholds")
    drawn = draw_cards(sides.spans, split, options.validation_days, options.seed)
    baselines = members.baselines.to_arrays()
    walked = list(walk_validation(sides.watched, split, drawn, members.weights, baselines))
    return members, walked, training


def _with_folds(sides: "Sides", options: TrainOptions, base: Model | None, say: Say) -> Learnt:
    say(f"{len(sides.spans)} cards in {options.folds} folds")
    nobody = Split(frozenset(), None)
    every = sample_examples(
        sides.fleet,
        nobody,
        False,
        options.max_windows,
        options.seed,
        options.augmented_share,
        sides.folds,
    )
    _check(every, "training")
    say(f"{len(every.x_NTF)} windows, {len(FEATURES)} features a minute")
    drawn = draw_cards(sides.spans, sides.split, options.validation_days, options.seed)
    walked: list[Walked] = []
    best: list[int] = []
    for fold in range(options.folds):
        say(f"fold {fold + 1} of {options.folds}")
        own = every.fold_N == fold
        training, watching = every.part(~own), every.part(own, options.max_windows // 4)
        _check(training, f"training (all but fold {fold + 1})")
        members = fit_members(training, watching, options.fit, options.seed, say, base)
        best.append(members.best_epoch)
        cards = frozenset(device for device, f in sides.folds.items() if f == fold)
        walked += walk_validation(
            sides.fleet,
            Split(cards, None),
            drawn & cards,
            members.weights,
            members.baselines.to_arrays(),
        )
    say("the model that is kept, on all cards")
    options = replace(options, fit=replace(options.fit, stop_after=1 + round(float(np.mean(best)))))
    return fit_members(every, every, options.fit, options.seed, say, base), walked, every


def _check(examples: Examples, name: str) -> None:
    """Both outcomes must occur."""
    y_N = examples.y_NH[:, DECISION_HEAD]
    if not (y_N == 1).any():
        raise RigcanaryError(
            f"the {name} part of the data holds no window within "
            f"{DECISION_HORIZON_MINUTES} minutes of a failure; give more failures, or "
            "split by cards only with --split device"
        )
    if not (y_N == 0).any():
        raise RigcanaryError(
            f"the {name} part of the data holds no window of a card that lived on for "
            f"{DECISION_HORIZON_MINUTES} minutes; give a longer recording or healthy cards"
        )


def spans_of(fleet: Fleet) -> list[Span]:
    """Every card of a fleet and the time its recording covers."""
    return [(d.device, d.node, d.first_ms, d.last_ms) for d in fleet.devices()]


class Sides:
    """The two sides of training: which set is watched, and how cards are split; with folds all
    cards are on both sides, each in the fold ``folds`` says.

    Raises:
        RigcanaryError: when there are too few cards, or validation cards are in training too.
    """

    def __init__(
        self, fleet: Fleet, watched: Fleet, spans: list[Span], options: TrainOptions
    ) -> None:
        self.fleet, self.watched, self.spans = fleet, watched, spans
        self.folds: dict[str, int] = {}
        length_ms = max(s[3] for s in spans) - min(s[2] for s in spans) if spans else 0
        if watched is fleet and options.folds > 1 and length_ms < LONG_DAYS * DAY_MS:
            self.folds = choose_folds(spans, options.seed, options.folds)
            self.split = Split(frozenset(self.folds), None)
            return
        if watched is fleet:
            self.split = choose_split(
                spans, options.seed, options.validation_share, options.time_share
            )
            return
        own = spans_of(watched)
        both = {s[0] for s in own} & {s[0] for s in spans}
        if both:
            raise RigcanaryError(
                f"{min(both)!r} and {len(both) - 1} other cards are in training and validation "
                "sets; give sets that share no card"
            )
        self.spans = spans + own
        self.split = Split(frozenset(s[0] for s in own), None)


def _policy_card(traces: list[Trace], budget_share: float) -> dict[str, Any]:
    """Validation curve of one policy, and what its thresholds do at the usual budgets."""
    points = operating_points(traces)
    walks, cards = [FastWalk(t.score_N) for t in traces], [t.card for t in traces]
    budgets = []
    for budget in BUDGETS:
        threshold = threshold_for(points, budget * budget_share)
        counts = count_at(traces, walks, threshold)
        sums = totals(cards, counts)
        budgets.append(
            {
                "false_alarm_budget_per_device_day": budget,
                "threshold": threshold,
                "event_recall": sums.event_recall,
                "precision": sums.precision,
                "false_alarms_per_device_day": sums.false_alarms_per_device_day,
                "ci95": confidence95(cards, counts),
            }
        )
    return {"validation": budgets, "validation_curve": [asdict(p) for p in points]}


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _calibration(
    logits_NH: npt.NDArray[np.float32], y_NH: npt.NDArray[np.float32]
) -> dict[str, dict[str, float]]:
    return {
        f"{h}m": fit_platt(logits_NH[y_NH[:, i] >= 0, i], y_NH[y_NH[:, i] >= 0, i] == 1)
        for i, h in enumerate(HORIZONS_MINUTES)
    }


def _split_by(sides: Sides, options: TrainOptions) -> str:
    if sides.watched is not sides.fleet:
        return "data set"
    if sides.folds:
        return f"{options.folds} folds of devices"
    return "device" if sides.split.train_until_ms is None else "device and time"


def _card(
    sides: Sides,
    options: TrainOptions,
    members: Members,
    arrays: dict[str, Any],
    walked: list[Walked],
    training: Examples,
    command: str,
) -> dict[str, Any]:
    fleet, watched, spans, split = sides.fleet, sides.watched, sides.spans, sides.split
    outcomes = fleet.outcomes | watched.outcomes
    y = np.concatenate([w.y_NH for w in walked])
    calibration = _calibration(np.concatenate([w.ensemble_NH for w in walked]), y)
    network_calibration = _calibration(np.concatenate([w.network_NH for w in walked]), y)
    policies = {
        name: _policy_card(
            [
                Trace(w.card, w.at_ms_N, calibrated(logits, lines)[:, DECISION_HEAD])
                for w, logits in zip(walked, logits_of_cards, strict=True)
            ],
            options.budget_share,
        )
        for name, logits_of_cards, lines in (
            (SERVED, [w.ensemble_NH for w in walked], calibration),
            ("lstm_attention", [w.network_NH for w in walked], network_calibration),
        )
    }
    for name in NAMES:
        traces = [Trace(w.card, w.at_ms_N, w.baselines[name]) for w in walked]
        policies[name] = _policy_card(traces, options.budget_share)
    known = y[:, _WINDOW_HEAD] >= 0
    risk_60m = np.concatenate(
        [calibrated(w.ensemble_NH, calibration)[:, _WINDOW_HEAD] for w in walked]
    )
    cut, begin = split.train_until_ms, split.validate_from_ms
    return {
        "schema": CARD_SCHEMA,
        "version": version_of(members.weights, arrays),
        "trained_on": options.origin or ", ".join(f.name for f in fleet.folders),
        "features_version": FEATURES_VERSION,
        "features": list(FEATURES),
        "seed": options.seed,
        "command": command,
        "options": asdict(options),
        "data": {
            "hash": fleet.content_hash(),
            "validation_hash": watched.content_hash(),
            "devices": len(spans),
            "failures": sum(o.failure_ms is not None for o in outcomes.values()),
            "first": _iso(min(s[2] for s in spans)),
            "last": _iso(max(s[3] for s in spans)),
        },
        "split": {
            "by": _split_by(sides, options),
            "validation_devices": len(split.validation),
            "validation_devices_hash": hashlib.sha256(
                "\n".join(sorted(split.validation)).encode()
            ).hexdigest()[:16],
            "train_until": None if cut is None else _iso(cut),
            "validate_from": None if begin is None else _iso(begin),
            "training_windows": len(training.x_NTF),
            "training_windows_before_failures": int((training.y_NH[:, DECISION_HEAD] == 1).sum()),
            "validation_windows": len(y),
            "validation_device_days": sum(w.card.device_days for w in walked),
            "validation_failures": sum(
                w.card.failure_ms is not None and w.card.judged for w in walked
            ),
        },
        "epochs": members.epochs,
        "calibration": calibration,
        "network_calibration": network_calibration,
        "decision_horizon_minutes": DECISION_HORIZON_MINUTES,
        "budget_share": options.budget_share,
        "window": window_figures(risk_60m[known], y[known, _WINDOW_HEAD] == 1),
        "policies": policies,
    }
