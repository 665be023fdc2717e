"""Training: a fleet data set → a model folder.

Calibration and thresholds come from walking every minute of the validation cards, as
``evaluate`` walks them.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from contract.errors import RigcanaryError
from models import baseline
from models.baseline import Baselines
from models.card import (
    CARD_SCHEMA,
    DECISION_HORIZON_MINUTES,
    SERVED,
    calibrated,
    version_of,
    write_model,
)
from models.counting import confidence95, totals
from models.dataset import Fleet
from models.examples import Examples, sample_examples
from models.features import FEATURES_VERSION, aggregates
from models.fit import FitOptions, Fitted, fit_network
from models.forward import Forward
from models.metrics import fit_platt, window_figures
from models.network import to_arrays
from models.series import FEATURES
from models.split import Span, Split, choose_split
from models.validation import Walked, draw_cards, walk_validation
from models.walk import FastWalk, Trace, count_at, operating_points, threshold_for
from models.windows import HORIZONS_MINUTES

BUDGETS: Final = (0.033, 0.003)
_HEAD: Final = HORIZONS_MINUTES.index(DECISION_HORIZON_MINUTES)
_WINDOW_HEAD: Final = HORIZONS_MINUTES.index(60)
_CHUNK: Final = 512
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Everything that training depends on beside the data; ``time_share`` None: split by cards
    only. ``validation_days`` bounds the device-days that are walked for thresholds, cards drawn
    at random. ``origin`` says in the card what the data are.
    """

    seed: int = 0
    max_windows: int = 40_000
    validation_share: float = 0.3
    time_share: float | None = 0.6
    augmented_share: float = 0.4
    validation_days: float = 1000.0
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
    with Fleet(*datasets) as fleet, Fleet(*validation or datasets) as other:
        say("reading telemetry and reducing it to minute rows")
        sides = Sides(fleet, other if validation else fleet, spans_of(fleet), options)
        split = sides.split
        say(f"{len(sides.spans)} cards, {len(split.validation)} of them validate")
        training = sample_examples(
            fleet, split, False, options.max_windows, options.seed, options.augmented_share
        )
        watching = sample_examples(
            sides.watched, split, True, options.max_windows // 4, options.seed, 0.0
        )
        for name, part in (("training", training), ("validation", watching)):
            if not (part.y_NH[:, _HEAD] == 1).any():
                raise RigcanaryError(
                    f"the {name} part of the data holds no window within "
                    f"{DECISION_HORIZON_MINUTES} minutes of a failure; give more failures, or "
                    "split by cards only with --split device"
                )
        say(f"{len(training.x_NTF)} training windows, {len(FEATURES)} features a minute")
        fitted_baselines = _fit_baselines(training, options)
        fitted = fit_network(
            (training.x_NTF, training.y_NH), (watching.x_NTF, watching.y_NH), options.fit, say
        )
        arrays = to_arrays(fitted.model, fitted.scaler)
        say("walking the validation cards for calibration and thresholds")
        drawn = draw_cards(sides.spans, split, options.validation_days, options.seed)
        walked = list(
            walk_validation(
                sides.watched,
                split,
                drawn,
                Forward(arrays),
                fitted_baselines,
            )
        )
        card = _card(sides, options, fitted, arrays, walked, training, command)
        write_model(out, card, dict(arrays), fitted_baselines.to_arrays())
    return card


def spans_of(fleet: Fleet) -> list[Span]:
    """Every card of a fleet and the time its recording covers."""
    return [(d.device, d.node, d.first_ms, d.last_ms) for d in fleet.devices()]


class Sides:
    """The two sides of training: which set is watched, and how cards are split.

    Raises:
        RigcanaryError: when there are too few cards, or validation cards are in training too.
    """

    def __init__(
        self, fleet: Fleet, watched: Fleet, spans: list[Span], options: TrainOptions
    ) -> None:
        self.fleet, self.watched, self.spans = fleet, watched, spans
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


def _fit_baselines(training: Examples, options: TrainOptions) -> Baselines:
    known = training.y_NH[:, _HEAD] >= 0
    z = np.concatenate(
        [
            aggregates(training.x_NTF[i : i + _CHUNK].astype(np.float32))
            for i in range(0, len(training.x_NTF), _CHUNK)
        ]
    )
    return baseline.fit(z[known], training.y_NH[known, _HEAD] == 1, options.seed)


def _policy_card(traces: list[Trace]) -> dict[str, Any]:
    """Validation curve of one policy, and what its thresholds do at the usual budgets."""
    points = operating_points(traces)
    walks, cards = [FastWalk(t.score_N) for t in traces], [t.card for t in traces]
    budgets = []
    for budget in BUDGETS:
        threshold = threshold_for(points, budget)
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


def _card(
    sides: Sides,
    options: TrainOptions,
    fitted: Fitted,
    arrays: dict[str, Any],
    walked: list[Walked],
    training: Examples,
    command: str,
) -> dict[str, Any]:
    fleet, watched, spans, split = sides.fleet, sides.watched, sides.spans, sides.split
    outcomes = fleet.outcomes | watched.outcomes
    logits = np.concatenate([w.logits_NH for w in walked])
    y = np.concatenate([w.y_NH for w in walked])
    calibration = {
        f"{h}m": fit_platt(logits[y[:, i] >= 0, i], y[y[:, i] >= 0, i] == 1)
        for i, h in enumerate(HORIZONS_MINUTES)
    }
    risks = [calibrated(w.logits_NH, calibration)[:, _HEAD] for w in walked]
    policies = {
        SERVED: _policy_card(
            [Trace(w.card, w.at_ms_N, risk) for w, risk in zip(walked, risks, strict=True)]
        )
    }
    for name in baseline.NAMES:
        policies[name] = _policy_card([Trace(w.card, w.at_ms_N, w.baselines[name]) for w in walked])
    known = y[:, _WINDOW_HEAD] >= 0
    risk_60m = np.concatenate(
        [calibrated(w.logits_NH, calibration)[:, _WINDOW_HEAD] for w in walked]
    )
    cut, begin = split.train_until_ms, split.validate_from_ms
    return {
        "schema": CARD_SCHEMA,
        "version": version_of(arrays),
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
            "by": "data set"
            if watched is not fleet
            else ("device" if cut is None else "device and time"),
            "validation_devices": len(split.validation),
            "validation_devices_hash": hashlib.sha256(
                "\n".join(sorted(split.validation)).encode()
            ).hexdigest()[:16],
            "train_until": None if cut is None else _iso(cut),
            "validate_from": None if begin is None else _iso(begin),
            "training_windows": len(training.x_NTF),
            "training_windows_before_failures": int((training.y_NH[:, _HEAD] == 1).sum()),
            "validation_windows": len(y),
            "validation_device_days": sum(w.card.device_days for w in walked),
            "validation_failures": sum(
                w.card.failure_ms is not None and w.card.judged for w in walked
            ),
        },
        "epochs": fitted.history,
        "calibration": calibration,
        "decision_horizon_minutes": DECISION_HORIZON_MINUTES,
        "window": window_figures(risk_60m[known], y[known, _WINDOW_HEAD] == 1),
        "policies": policies,
    }
