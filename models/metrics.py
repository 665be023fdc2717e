"""Calibration and the figures over single windows."""

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_BINS: Final = 15
_MIN_POSITIVES: Final = 5


def fit_platt(logit_N: npt.NDArray[np.floating], positive_N: Bools) -> dict[str, float]:
    """Slope and intercept that turn logits into calibrated log-odds.

    The identity where there is too little to fit, or where larger logits do not mean more
    failures.
    """
    positives = int(positive_N.sum())
    if positives < _MIN_POSITIVES or positives > len(positive_N) - _MIN_POSITIVES:
        return {"slope": 1.0, "intercept": 0.0}
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1e4, max_iter=1000)
    fitted.fit(logit_N.astype(np.float64)[:, None], positive_N)
    slope, intercept = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    return (
        {"slope": slope, "intercept": intercept} if slope > 0 else {"slope": 1.0, "intercept": 0.0}
    )


def brier(risk_N: Floats, positive_N: Bools) -> float:
    """Mean squared distance of risk and outcome, 0 without windows."""
    return float(np.mean((risk_N - positive_N) ** 2)) if len(risk_N) else 0.0


def expected_calibration_error(risk_N: Floats, positive_N: Bools) -> float:
    """Mean distance of risk and frequency over fifteen bins of equal width."""
    if not len(risk_N):
        return 0.0
    bins = np.minimum((risk_N * _BINS).astype(np.int64), _BINS - 1)
    gap = np.bincount(bins, risk_N - positive_N, minlength=_BINS)
    return float(np.abs(gap).sum() / len(risk_N))


def window_figures(risk_N: Floats, positive_N: Bools) -> dict[str, float]:
    """Average precision, ROC AUC, Brier score and calibration error over windows.

    The first two are 0 where only one outcome occurs.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    both = bool(positive_N.any()) and not bool(positive_N.all())
    return {
        "average_precision": float(average_precision_score(positive_N, risk_N)) if both else 0.0,
        "roc_auc": float(roc_auc_score(positive_N, risk_N)) if both else 0.0,
        "brier": brier(risk_N, positive_N),
        "ece": expected_calibration_error(risk_N, positive_N),
    }
