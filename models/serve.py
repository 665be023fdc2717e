"""Serving: windows → risks and evidence.

``load("default").score(rows_BTC)``. One thread at a time may
score; everything else is safe from any thread.
"""

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contract.decision import Evidence
from contract.errors import ConfigError
from contract.minute import COLUMN_INDEX, COLUMNS, WINDOW_MINUTES
from contract.signals import COUNTERS, SIGNALS
from models.baseline import Baselines
from models.card import SERVED, Model, calibrated, read_model
from models.drift import Drift
from models.ensemble import DECISION_HEAD, ensemble_logits
from models.features import BASELINE_MINUTES, features
from models.forward import MAX_BATCH, Forward
from models.history import SUMS, empty, enter
from models.seen import see

Array = npt.NDArray[np.float32]
Risks = npt.NDArray[np.float64]

_RECENT_MINUTES: Final = 5
_MAX_EVIDENCE: Final = 5
_MIN_CONTRIBUTION: Final = 0.02
TELEMETRY: Final = "samples"
"""The name under which vanishing telemetry itself stands as evidence."""


class Scores(NamedTuple):
    """Calibrated risks of failing within 15, 60 and 240 minutes, finite, 0–1, float64 [B]."""

    risk_15m_B: Risks
    risk_60m_B: Risks
    risk_240m_B: Risks


class Predictor:
    """A model folder, ready to score."""

    history_sums = SUMS
    history_version = "1"
    """Rises when the sums of the same minutes become others; stored ones are dropped then."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.version = model.version
        self._forward = Forward(model.weights)
        self._drift = Drift(model.baselines)
        try:
            self._baselines = Baselines.from_arrays(model.baselines)
        except KeyError as error:
            raise ConfigError(f"model {model.folder}: baselines.npz lacks {error}") from error

    def threshold(self, budget: float) -> float:
        """Risk (240 min) from which ``budget`` false alarms a day were kept on validation."""
        return self.model.threshold(SERVED, budget)

    def enter(self, sums_BS: Array, rows_BTC: Array) -> Array:
        """The cards' histories [B, S] after a minute; to be called once a card and minute."""
        return enter(sums_BS, rows_BTC)

    def score(self, rows_BTC: Array, sums_BS: Array | None = None) -> Scores:
        """Risks of windows of minute rows float32 [B, 60, C], oldest first, NaN where missing.

        ``sums_BS`` are the cards' histories (:mod:`models.history`); None: nothing is known.

        Raises:
            ValueError: on another shape.
        """
        if rows_BTC.ndim != 3 or rows_BTC.shape[1] != WINDOW_MINUTES:
            wanted = f"[B, {WINDOW_MINUTES}, {len(COLUMNS)}]"
            raise ValueError(f"rows_BTC has shape {rows_BTC.shape}, {wanted} expected")
        return Scores(
            *calibrated(
                self._logits(rows_BTC, sums_BS, scored=True), self.model.card["calibration"]
            ).T
        )

    def drift(self) -> dict[str, float]:
        """Population stability index by feature (:mod:`models.drift`) of what was scored."""
        return self._drift.psi()

    def _logits(self, rows_BTC: Array, sums_BS: Array | None, *, scored: bool = False) -> Array:
        """The ensemble's raw output [B, 3]."""
        sums = empty(len(rows_BTC)) if sums_BS is None else sums_BS
        parts = [np.empty((0, 3), np.float32)]
        for at in range(0, len(rows_BTC), MAX_BATCH):
            seen = see(rows_BTC[at : at + MAX_BATCH], sums[at : at + MAX_BATCH])
            if scored:
                self._drift.take(seen.x_BTF[:, -1])
            logits_BH, _ = self._forward(seen.x_BTF)
            parts.append(ensemble_logits(logits_BH, self._baselines.tree_logit(seen)))
        return np.concatenate(parts)

    def attention(self, rows_BTC: Array) -> Array:
        """Share of each minute in the attention, float32 [B, 60], summing to 1."""
        return self._forward(features(rows_BTC))[1]

    def explain(self, rows_TC: Array, sums_S: Array | None = None) -> list[Evidence]:
        """Which sensors carry the risk of one window float32 [60, C], the strongest first.

        By occlusion: a sensor's columns are set to their mean over the window's first fifteen
        minutes, or taken away, and what falls of the risk (in log-odds) is the sensor's part;
        ``contribution`` is its share of all that falls. ``samples`` stands for the telemetry
        itself: samples that are missing, lost or unresponsive.
        """
        rows_TC = np.clip(np.where(np.isfinite(rows_TC), rows_TC, np.nan), -1e16, 1e16)
        groups = [(s.name, _columns_of(s.name)) for s in SIGNALS]
        groups = [(n, c) for n, c in groups if np.isfinite(rows_TC[:, c[0]]).any()]
        occluded = [rows_TC, _without_losses(rows_TC)]
        for name, columns in groups:
            occluded += [_at_baseline(rows_TC, name, columns), _removed(rows_TC, columns)]
        sums = None if sums_S is None else np.repeat(sums_S[None], len(occluded), axis=0)
        logit = self._logits(np.stack(occluded), sums)[:, DECISION_HEAD].astype(np.float64)
        falls = {TELEMETRY: max(0.0, float(logit[0] - logit[1]))}
        for i, (name, _) in enumerate(groups):
            falls[name] = max(0.0, float(logit[0] - logit[2 + 2 * i : 4 + 2 * i].min()))
        total = sum(falls.values())
        evidence = [
            _evidence(rows_TC, name, fall / total)
            for name, fall in falls.items()
            if total > 0 and fall / total >= _MIN_CONTRIBUTION
        ]
        return sorted(evidence, key=lambda e: -e["contribution"])[:_MAX_EVIDENCE]


def _columns_of(signal: str) -> list[int]:
    return [
        i
        for name, i in COLUMN_INDEX.items()
        if name.startswith(signal + "_") and name[len(signal) + 1 :] in _STATISTICS
    ]


_STATISTICS: Final = frozenset(("mean", "std", "min", "max", "count", "first", "last", "increase"))
_COUNTER_NAMES: Final = frozenset(c.name for c in COUNTERS)
_SAMPLE_COLUMNS: Final = [i for name, i in COLUMN_INDEX.items() if name.startswith("samples")]


def _early_mean(values_T: Array) -> float:
    present = values_T[np.isfinite(values_T)][:BASELINE_MINUTES]
    return float(present.mean()) if len(present) else float("nan")


def _at_baseline(rows_TC: Array, name: str, columns: list[int]) -> Array:
    rows = rows_TC.copy()
    for column in columns:
        there = np.isfinite(rows[:, column])
        rows[there, column] = _early_mean(rows_TC[:, column])
    if name in _COUNTER_NAMES:
        # First equals last: no steps between minutes either.
        rows[:, COLUMN_INDEX[name + "_first"]] = rows[:, COLUMN_INDEX[name + "_last"]]
    return rows


def _removed(rows_TC: Array, columns: list[int]) -> Array:
    rows = rows_TC.copy()
    rows[:, columns] = np.nan
    return rows


def _without_losses(rows_TC: Array) -> Array:
    """As if every sample since the first had come, with its state ``ok``."""
    rows = rows_TC.copy()
    samples = rows[:, COLUMN_INDEX["samples"]]
    there = np.flatnonzero(samples > 0)
    if not len(there):
        return rows
    typical = float(np.nanmax(samples))
    before = there[0]
    for t in range(before + 1, len(rows)):
        if not samples[t] > 0:
            rows[t] = rows[t - 1]
    counts = [i for name, i in COLUMN_INDEX.items() if name.endswith("_count")]
    share = typical / np.maximum(rows[before:, COLUMN_INDEX["samples_ok"]], 1)
    rows[before:, counts] = np.minimum(rows[before:, counts] * share[:, None], typical)
    rows[before:, _SAMPLE_COLUMNS] = 0
    rows[before:, COLUMN_INDEX["samples"]] = typical
    rows[before:, COLUMN_INDEX["samples_ok"]] = typical
    return rows


def _evidence(rows_TC: Array, name: str, contribution: float) -> Evidence:
    suffix = "_increase" if name in _COUNTER_NAMES else "_mean"
    values = rows_TC[:, COLUMN_INDEX["samples_ok" if name == TELEMETRY else name + suffix]]
    finite = values[np.isfinite(values)]
    recent = float(finite[-_RECENT_MINUTES:].mean()) if len(finite) else None
    baseline = _early_mean(values)
    return Evidence(
        sensor=name,
        value=recent,
        baseline=baseline if np.isfinite(baseline) else None,
        contribution=min(1.0, contribution),
    )


def load(name_or_path: str | Path) -> Predictor:
    """The predictor of ``"default"`` (the shipped model) or of a model folder.

    Raises:
        contract.errors.ConfigError: when there is no such model, or it does not fit this version.
    """
    return Predictor(read_model(name_or_path))
