"""``evaluate``: how a model and the baselines would have done on a fleet (contracts section 5).

Every card is walked in event time through the worker's hysteresis; thresholds come from the
model folder, never from the set that is judged.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ConfigError
from models.baseline import COMPONENTS, NAMES
from models.card import SERVED, calibrated
from models.card_scores import score_cards
from models.counting import Card, Count, card_of, confidence95, count, totals
from models.dataset import Fleet
from models.ensemble import DECISION_HEAD
from models.metrics import window_figures
from models.serve import Predictor
from models.walk import FastWalk, Trace, operating_points, walk
from models.windows import HORIZONS_MINUTES, labels

BUDGETS: Final = (0.033, 0.003)
POLICIES: Final = (SERVED, "lstm_attention", *NAMES)
_WINDOW_MINUTES: Final = 60
_WINDOW_HEAD: Final = HORIZONS_MINUTES.index(_WINDOW_MINUTES)
_SCHEMA: Final = pa.schema(
    [
        ("policy", pa.string()),
        ("device", pa.string()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("score", pa.float64()),
        ("threshold", pa.float64()),
        ("false_alarm_budget_per_device_day", pa.float64()),
    ]
)
Scores = npt.NDArray[np.float64]


class ScoresFile:
    """``--scores``: policy, device, at, score, threshold (and budget) of every scored minute.

    ``score`` ≥ ``threshold`` exactly where the alarm is raised: it is the k-th largest of the
    last n scores, as the worker's hysteresis asks for, and stays at the threshold while that
    holds an alarm raised.

    Raises:
        ConfigError: when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd")
        except OSError as error:
            raise ConfigError(f"--scores {path}: cannot write it: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def write(
        self,
        policy: str,
        trace: Trace,
        alarm_N: npt.NDArray[np.bool_],
        threshold: float,
        budget: float,
    ) -> None:
        """Append one card's minutes under one policy and budget."""
        effective = FastWalk(trace.score_N).effective_N
        below = np.nextafter(threshold, -np.inf)
        score = np.where(alarm_N, np.maximum(effective, threshold), np.minimum(effective, below))
        n = len(score)
        self._writer.write_table(
            pa.table(
                [
                    pa.array([policy] * n),
                    pa.array([trace.card.device] * n),
                    pa.array(trace.at_ms_N).cast(_SCHEMA.field("at").type),
                    pa.array(np.where(np.isfinite(score), score, 0.0)),
                    pa.array(np.full(n, threshold)),
                    pa.array(np.full(n, budget)),
                ],
                schema=_SCHEMA,
            )
        )


def _policy(
    name: str,
    budget: float,
    threshold: float,
    traces: Sequence[Trace],
    curve: list[dict[str, float]],
    scores_file: ScoresFile | None,
) -> dict[str, Any]:
    counts: list[Count] = []
    for trace in traces:
        alarms = walk(trace.score_N, threshold)
        counts.append(count(trace.card, trace.at_ms_N[alarms].tolist()))
        if scores_file is not None:
            scores_file.write(name, trace, alarms, threshold, budget)
    cards = [t.card for t in traces]
    sums = totals(cards, counts)
    leads = [c.lead_ms / 60_000 for c in counts if c.lead_ms is not None]
    return {
        "name": name,
        "role": _role(name),
        "false_alarm_budget_per_device_day": budget,
        "threshold": threshold,
        "event_recall": sums.event_recall,
        "precision": sums.precision,
        "false_alarms_per_device_day": sums.false_alarms_per_device_day,
        "false_alarms": sums.false,
        "late": sums.late,
        "lead_minutes": {
            "median": float(np.median(leads)) if leads else 0.0,
            "p10": float(np.percentile(leads, 10)) if leads else 0.0,
        },
        "by_kind": _by_kind(cards, counts),
        "curve": curve,
        "ci95": confidence95(cards, counts),
    }


def _role(name: str) -> str:
    if name == SERVED:
        return "served"
    return "component" if name in COMPONENTS else "baseline"


def _by_kind(cards: Sequence[Card], counts: Sequence[Count]) -> dict[str, dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {}
    for card, one in zip(cards, counts, strict=True):
        if card.failure_ms is not None and card.judged:
            entry = kinds.setdefault(card.kind, {"failures": 0, "caught": 0})
            entry["failures"] += 1
            entry["caught"] += one.lead_ms is not None
    return dict(sorted(kinds.items()))


def evaluate(
    dataset: Path,
    predictor: Predictor,
    budgets: Sequence[float] = BUDGETS,
    scores: Path | None = None,
) -> dict[str, Any]:
    """The object that ``rigcanary evaluate --json`` prints.

    Raises:
        ConfigError: when the data set or the model cannot be used.
    """
    for budget in budgets:
        if not 0 < budget <= 1440:
            raise ConfigError(f"--budget {budget:g}: false alarms a device-day, more than 0")
    model = predictor.model
    with Fleet(dataset) as fleet:
        cards: list[Card] = []
        traces: dict[str, list[Trace]] = {name: [] for name in POLICIES}
        risks: list[Scores] = []
        positives: list[npt.NDArray[np.bool_]] = []
        for device, scored in score_cards(fleet.devices(), model.weights, model.baselines):
            card, at = card_of(device), scored.at_ms_N
            risk_NH = calibrated(scored.ensemble_NH, model.card["calibration"])
            network_NH = calibrated(scored.network_NH, model.card["network_calibration"])
            cards.append(card)
            risks.append(risk_NH[:, _WINDOW_HEAD])
            positives.append(labels(at, device.outcome, device.last_ms)[0][:, _WINDOW_HEAD])
            by_policy = scored.baselines | {
                SERVED: risk_NH[:, DECISION_HEAD],
                "lstm_attention": network_NH[:, DECISION_HEAD],
            }
            for name in POLICIES:
                traces[name].append(Trace(card, at, by_policy[name]))
        seen = {card.device for card in cards}
        unseen = [
            d for d, o in fleet.outcomes.items() if o.failure_ms is not None and d not in seen
        ]
    if not cards:
        raise ConfigError(f"data set {dataset}: no device has a row before its failure or move")
    failing = [card for card in cards if card.failure_ms is not None]
    return {
        "devices": len(cards),
        "device_days": sum(card.device_days for card in cards),
        "failures": len(failing) + len(unseen),
        "unjudged": sum(not card.judged for card in failing) + len(unseen),
        "model_version": predictor.version,
        "policies": _policies(traces, predictor, budgets, scores),
        "window": window_figures(np.concatenate(risks), np.concatenate(positives)),
    }


def _policies(
    traces: dict[str, list[Trace]],
    predictor: Predictor,
    budgets: Sequence[float],
    scores: Path | None,
) -> list[dict[str, Any]]:
    policies = []
    curves = {name: [asdict(p) for p in operating_points(traces[name])] for name in POLICIES}

    def run(file: ScoresFile | None) -> None:
        for budget in budgets:
            for name in POLICIES:
                threshold = predictor.model.threshold(name, budget)
                policies.append(_policy(name, budget, threshold, traces[name], curves[name], file))

    if scores is None:
        run(None)
    else:
        with ScoresFile(scores) as file:
            run(file)
    return policies


def table(result: dict[str, Any]) -> str:
    """The result for people: one line a policy and budget."""
    lines = [
        f"{result['devices']} cards, {result['device_days']:.1f} device-days, "
        f"{result['failures']} failures ({result['unjudged']} not judged)",
        "",
        f"{'policy':<20} {'budget':>7} {'recall':>7} {'95 %':>13} {'precision':>9} "
        f"{'false/day':>9} {'late':>5} {'lead min':>9}",
    ]
    for policy in result["policies"]:
        low, high = policy["ci95"]["event_recall"]
        lines.append(
            f"{policy['name']:<20} {policy['false_alarm_budget_per_device_day']:>7g} "
            f"{policy['event_recall']:>7.2f} {f'{low:.2f}–{high:.2f}':>13} "
            f"{policy['precision']:>9.2f} {policy['false_alarms_per_device_day']:>9.4f} "
            f"{policy['late']:>5} {policy['lead_minutes']['median']:>9.0f}"
        )
    served = result["policies"][0]
    budget = served["false_alarm_budget_per_device_day"]
    lines += ["", f"caught by kind ({served['name']}, budget {budget:g}):"]
    lines += [
        f"  {kind or '(no kind)':<20} {n['caught']} of {n['failures']}"
        for kind, n in served["by_kind"].items()
    ]
    window = result["window"]
    figures = ", ".join(f"{name} {value:.3f}" for name, value in window.items())
    lines += ["", f"windows (a failure within {_WINDOW_MINUTES} minutes): {figures}"]
    return "\n".join(lines)
