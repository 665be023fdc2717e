"""Baselines that a model has to beat at the same false-alarm budget.

All give one score a window, 0–1, larger is worse; the thresholds are chosen as the model's
are. Fitted ones are stored as plain arrays: trees are nodes, not pickles.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX
from models.features import aggregates

Array = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]

TREE_ITERATIONS: Final = 120
TREE_LEAVES: Final = 15
RECENT_MINUTES: Final = 10

LIMITS: Final[tuple[tuple[str, float, float], ...]] = (
    # column, limit, distance from the limit that changes the score by 0.5
    ("temperature_celsius_max", 92.0, 30.0),  # vendors slow down at 83–94 °C
    ("memory_temperature_celsius_max", 105.0, 30.0),  # GDDR6X is specified to 105–110 °C
    ("vrm_ripple_volts_max", 0.12, 0.12),  # ATX12V allows 0.12 V on the 12 V rail
    ("fan_vibration_g_max", 0.7, 0.7),  # chosen: several times a sound small fan
    ("ecc_corrected_total_increase", 20.0, 20.0),  # chosen
    ("ecc_uncorrected_total_increase", 0.5, 0.5),  # one is one too many
)


def never_alarm(rows_BTC: Array) -> Scores:
    """0, always."""
    return np.zeros(len(rows_BTC))


def static_thresholds(rows_BTC: Array) -> Scores:
    """How close the last minutes came to fixed limits; 0.5 is at the limit."""
    score = np.zeros(len(rows_BTC))
    for column, limit, step in LIMITS:
        value = rows_BTC[:, -RECENT_MINUTES:, COLUMN_INDEX[column]].astype(np.float64)
        worst: Scores = np.where(np.isnan(value), -np.inf, value).max(axis=1)
        score = np.maximum(score, np.clip(0.5 + 0.5 * (worst - limit) / step, 0, 1))
    return score


def telemetry_missing(rows_BTC: Array) -> Scores:
    """Share of the last ten minutes' samples that are absent, lost or unresponsive."""
    samples = np.nan_to_num(rows_BTC[:, :, COLUMN_INDEX["samples"]]).astype(np.float64)
    ok = np.nan_to_num(rows_BTC[:, :, COLUMN_INDEX["samples_ok"]]).astype(np.float64)
    typical = np.maximum(samples.max(axis=1), 1)
    good = ok[:, -RECENT_MINUTES:].sum(axis=1)
    # Rows before a card's first are a start, not a loss.
    started = np.maximum.accumulate(samples > 0, axis=1)[:, -RECENT_MINUTES:].sum(axis=1)
    return np.asarray(np.clip(1 - good / np.maximum(typical * started, 1), 0, 1))


def _sigmoid(value: Scores) -> Scores:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -50, 50))))


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logistic regression on standardised window aggregates."""

    mean: Scores
    std: Scores
    coefficient: Scores
    intercept: Scores

    def score(self, z_BG: Array) -> Scores:
        """Risk [B] of aggregates [B, G]."""
        scaled = np.clip((z_BG - self.mean) / self.std, -10, 10)
        return _sigmoid(scaled @ self.coefficient + self.intercept)


@dataclass(frozen=True, slots=True)
class Trees:
    """Histogram gradient boosting as arrays: nodes of all trees, one after the other."""

    start: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: Scores
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: Scores
    intercept: Scores

    def score(self, z_BG: Array) -> Scores:
        """Risk [B] of aggregates [B, G]; missing values must have been filled."""
        row_B = np.arange(len(z_BG)) * z_BG.shape[1]
        flat = z_BG.ravel()
        # All trees go down together; a leaf leads to itself.
        itself = np.arange(len(self.feature), dtype=np.int32)
        leaf = self.feature < 0
        feature = np.where(leaf, 0, self.feature)
        left, right = (np.where(leaf, itself, side) for side in (self.left, self.right))
        node_NB = np.repeat(self.start[:, None], len(z_BG), axis=1)
        while not leaf[node_NB].all():
            below = flat[row_B + feature[node_NB]] <= self.threshold[node_NB]
            node_NB = np.where(below, left[node_NB], right[node_NB])
        return _sigmoid(self.value[node_NB].sum(axis=0) + float(self.intercept))


@dataclass(frozen=True, slots=True)
class Baselines:
    """The fitted baselines of a model folder."""

    logistic: Logistic
    trees: Trees

    def scores(self, rows_BTC: Array, x_BTF: Array) -> dict[str, Scores]:
        """Scores [B] of every baseline, by its name."""
        z_BG = aggregates(x_BTF)
        return {
            "never_alarm": never_alarm(rows_BTC),
            "static_thresholds": static_thresholds(rows_BTC),
            "telemetry_missing": telemetry_missing(rows_BTC),
            "logistic_regression": self.logistic.score(z_BG),
            "gradient_boosting": self.trees.score(z_BG),
        }

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Named arrays for ``baselines.npz``."""
        return {
            f"{part}.{name}": np.asarray(getattr(getattr(self, part), name))
            for part, kind in _PARTS
            for name in kind.__slots__
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "Baselines":
        """The inverse of :meth:`to_arrays`; raises ``KeyError`` when an array is missing."""

        def part(prefix: str, kind: Any) -> Any:
            return kind(**{name: arrays[f"{prefix}.{name}"] for name in kind.__slots__})

        return cls(part("logistic", Logistic), part("trees", Trees))


_PARTS: Final[tuple[tuple[str, Any], ...]] = (("logistic", Logistic), ("trees", Trees))
NAMES: Final = (
    "never_alarm",
    "static_thresholds",
    "telemetry_missing",
    "logistic_regression",
    "gradient_boosting",
)


def fit(z_NG: Array, positive_N: npt.NDArray[np.bool_], seed: int) -> Baselines:
    """Fit the baselines on window aggregates; both classes must occur."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # no types

    mean, std = z_NG.mean(axis=0, dtype=np.float64), z_NG.std(axis=0, dtype=np.float64)
    std = np.where(std > 1e-3, std, 1.0)
    linear = LogisticRegression(C=0.01, max_iter=300)
    # Pools of threads that wait by spinning come to a standstill on a busy machine.
    with threadpool_limits(1):
        linear.fit(np.clip((z_NG - mean) / std, -10, 10), positive_N)
    logistic = Logistic(mean, std, linear.coef_[0], np.asarray(linear.intercept_[0]))
    boosting = HistGradientBoostingClassifier(
        max_iter=TREE_ITERATIONS,
        max_leaf_nodes=TREE_LEAVES,
        learning_rate=0.1,
        l2_regularization=1.0,
        min_samples_leaf=40,
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1):
        boosting.fit(z_NG, positive_N)
    return Baselines(logistic, trees_of(boosting))


def trees_of(boosting: Any) -> Trees:
    """The nodes of a fitted scikit-learn ``HistGradientBoostingClassifier`` (two classes)."""
    # scikit-learn has no public way to the nodes; a test compares with predict_proba.
    parts: list[npt.NDArray[Any]] = [t[0].nodes for t in boosting._predictors]  # noqa: SLF001
    sizes = np.array([len(nodes) for nodes in parts])
    start = np.r_[0, np.cumsum(sizes)[:-1]].astype(np.int32)
    nodes = np.concatenate(parts)
    offset = np.repeat(start, sizes)
    leaf = nodes["is_leaf"].astype(np.bool_)
    return Trees(
        start=start,
        feature=np.where(leaf, -1, nodes["feature_idx"]).astype(np.int32),
        threshold=nodes["num_threshold"].astype(np.float64),
        left=(nodes["left"].astype(np.int64) + offset).astype(np.int32),
        right=(nodes["right"].astype(np.int64) + offset).astype(np.int32),
        value=nodes["value"].astype(np.float64),
        intercept=np.asarray(float(np.ravel(boosting._baseline_prediction)[0])),  # noqa: SLF001
    )
