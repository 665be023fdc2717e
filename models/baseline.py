"""Baselines that a model has to beat at the same false-alarm budget.

All give one score a window, 0–1, larger is worse; the thresholds are chosen as the model's
are. Fitted ones are stored as plain arrays: trees are nodes, not pickles. The boosted trees are
one half of the served ensemble and stand in the table as its component.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX
from models.features import AGGREGATES
from models.history import RELATIONS, means_and_deviations, quantities
from models.seen import Seen

Array = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]

TREE_ITERATIONS: Final = 240
TREE_LEAVES: Final = 15
TREE_RATE: Final = 0.08
RECENT_MINUTES: Final = 10
TREE_COLUMNS: Final = np.array(
    [i for i, name in enumerate(AGGREGATES) if ":level|" not in name], dtype=np.int64
)
"""Aggregates that trees are given: no levels, by which they would know cards by heart."""
EWMA_DECAY: Final = 0.8
EWMA_RELATIONS: Final = (
    "rise_of_power",
    "memory_over_core",
    "rpm_of_duty",
    "vibration_of_rpm",
    "ripple_of_power",
    "voltage_of_power",
)
_EWMA_K: Final = np.array([[r.name for r in RELATIONS].index(name) for name in EWMA_RELATIONS])
_EWMA_ENOUGH: Final = 30.0
_EWMA_HALF: Final = 8.0
"""Deviations at which the score is 0.5; any number does, since the budget sets the threshold."""
AGE_EDGES_MINUTES: Final = np.geomspace(60, 60 * 24 * 365, 25)

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


def ewma_z_score(seen: Seen) -> Scores:
    """How far an EWMA of a signal left the card's own mean, in its deviations; the worst of six.

    The control chart of Roberts (1959), with mean and deviation from the card's history, and
    nothing said of the load.
    """
    mean_BK, deviation_BK, minutes_BK = (
        part[:, _EWMA_K] for part in means_and_deviations(seen.sums_BS)
    )
    y_BTK = quantities(seen.rows_BTC[:, -4 * RECENT_MINUTES :])[0][:, :, _EWMA_K]
    there = np.isfinite(y_BTK)
    weight_T = EWMA_DECAY ** np.arange(y_BTK.shape[1])[::-1, None]
    total = (np.where(there, y_BTK, 0) * weight_T).sum(axis=1)
    share = (there * weight_T).sum(axis=1)
    known = (share > 0) & (minutes_BK >= _EWMA_ENOUGH)
    z_BK = np.abs(total / np.maximum(share, 1e-9) - mean_BK) / deviation_BK
    worst = np.where(known, z_BK, 0).max(axis=1)
    return np.asarray(worst / (worst + _EWMA_HALF), dtype=np.float64)


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

    def logit(self, z_BG: Array) -> Scores:
        """Log-odds [B] of inputs [B, G]; missing values must have been filled."""
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
        return np.asarray(self.value[node_NB].sum(axis=0) + float(self.intercept))

    def score(self, z_BG: Array) -> Scores:
        """Risk [B] of inputs [B, G]."""
        return _sigmoid(self.logit(z_BG))


@dataclass(frozen=True, slots=True)
class AgeHazard:
    """Share of training windows before a failure by how long the card had been seen: all that
    age says, and a guard against recordings whose end gives failures away.
    """

    edges: Scores
    risk: Scores

    def score(self, age_minutes_B: Array) -> Scores:
        """Risk [B]; 0 where the age is not known."""
        at = np.searchsorted(self.edges, np.nan_to_num(age_minutes_B, nan=0.0))
        return np.where(np.isnan(age_minutes_B), 0.0, self.risk[at])


@dataclass(frozen=True, slots=True)
class Baselines:
    """The fitted baselines of a model folder. ``prior`` are the trees of the model that training
    went on from; what they say is one more column for ``trees``.
    """

    logistic: Logistic
    trees: Trees
    hazard: AgeHazard
    prior: Trees | None = None

    def tree_logit(self, seen: Seen) -> Scores:
        """Log-odds [B] of the boosted trees."""
        return self.trees.logit(tree_inputs(seen.z_BG, seen.h_BH, self.prior))

    def scores(self, seen: Seen, tree_logit_B: Scores | None = None) -> dict[str, Scores]:
        """Scores [B] of every baseline, by its name."""
        if tree_logit_B is None:
            tree_logit_B = self.tree_logit(seen)
        return {
            "gradient_boosting": _sigmoid(tree_logit_B),
            "logistic_regression": self.logistic.score(seen.z_BG),
            "ewma_z_score": ewma_z_score(seen),
            "static_thresholds": static_thresholds(seen.rows_BTC),
            "telemetry_missing": telemetry_missing(seen.rows_BTC),
            "age_hazard": self.hazard.score(seen.age_minutes_B),
            "never_alarm": never_alarm(seen.rows_BTC),
        }

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Named arrays for ``baselines.npz``."""
        parts = [(part, getattr(self, part)) for part, _ in _PARTS]
        return {
            f"{part}.{name}": np.asarray(getattr(value, name))
            for part, value in parts
            if value is not None
            for name in value.__slots__
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "Baselines":
        """The inverse of :meth:`to_arrays`; raises ``KeyError`` when an array is missing."""

        def part(prefix: str, kind: Any) -> Any:
            return kind(**{name: arrays[f"{prefix}.{name}"] for name in kind.__slots__})

        own = {
            prefix: part(prefix, kind)
            for prefix, kind in _PARTS
            if prefix != "prior" or "prior.start" in arrays
        }
        return cls(**own)


_PARTS: Final[tuple[tuple[str, Any], ...]] = (
    ("logistic", Logistic),
    ("trees", Trees),
    ("hazard", AgeHazard),
    ("prior", Trees),
)
COMPONENTS: Final = ("lstm_attention", "gradient_boosting")
"""The two halves of the served ensemble."""
NAMES: Final = (
    "gradient_boosting",
    "logistic_regression",
    "ewma_z_score",
    "static_thresholds",
    "telemetry_missing",
    "age_hazard",
    "never_alarm",
)


def tree_inputs(z_BG: Array, h_BH: Array, prior: Trees | None) -> Array:
    """What trees see of windows: aggregates without levels, history, and what the prior says."""
    own = np.concatenate([z_BG[:, TREE_COLUMNS], h_BH], axis=1)
    if prior is None:
        return own
    return np.concatenate([own, prior.logit(own)[:, None].astype(np.float32)], axis=1)


def fit(
    z_NG: Array,
    h_NH: Array,
    age_minutes_N: Array,
    positive_N: npt.NDArray[np.bool_],
    seed: int,
    prior: Trees | None = None,
) -> Baselines:
    """Fit the baselines on windows as :class:`models.seen.Seen` has them; both classes occur."""
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
        learning_rate=TREE_RATE,
        l2_regularization=1.0,
        min_samples_leaf=40,
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1):
        boosting.fit(tree_inputs(z_NG, h_NH, prior), positive_N)
    hazard = _fit_hazard(age_minutes_N, positive_N)
    return Baselines(logistic, trees_of(boosting), hazard, prior)


def _fit_hazard(age_minutes_N: Array, positive_N: npt.NDArray[np.bool_]) -> AgeHazard:
    at = np.searchsorted(AGE_EDGES_MINUTES, age_minutes_N)
    every = np.bincount(at, minlength=len(AGE_EDGES_MINUTES) + 1)
    failing = np.bincount(at[positive_N], minlength=len(every))
    # Bins without a window have the share of all.
    share = float(positive_N.mean())
    return AgeHazard(AGE_EDGES_MINUTES, (failing + share) / (every + 1))


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
