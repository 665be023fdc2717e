"""Whether what is scored still looks like what was trained on: population stability by feature.

The index of Lewis's credit scorecards, Σ (p − q) ln(p / q) over ten bins that held a tenth of the
healthy training windows each; custom reads 0.1 as a small and 0.25 as a large change. Only the
newest minute of a window counts.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from models.series import FEATURES

Array = npt.NDArray[np.float32]
BINS: Final = 10
EVERY: Final = 8
"""One window of so many is looked at."""
KEPT: Final = 20_000.0
"""Looks after which older ones count half."""
ENOUGH: Final = 200.0
_FLOOR: Final = 1e-3


def reference(x_NF: Array) -> dict[str, npt.NDArray[Any]]:
    """Edges [F, 9] and shares [F, 10] of healthy windows, as arrays of a model folder."""
    edges = np.quantile(x_NF, np.linspace(0, 1, BINS + 1)[1:-1], axis=0).T.astype(np.float32)
    counts = _counts(x_NF, edges)
    return {"drift.edges": edges, "drift.shares": counts / max(len(x_NF), 1)}


def _counts(x_NF: Array, edges_FE: Array) -> npt.NDArray[np.float64]:
    bin_NF = (x_NF[:, :, None] > edges_FE).sum(axis=-1)
    return np.stack([(bin_NF == k).sum(axis=0) for k in range(BINS)], axis=1).astype(np.float64)


class Drift:
    """Counts the windows that a predictor scores; not safe in several threads at once."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Take the arrays of :func:`reference`; without them nothing is counted."""
        self._edges_FE = arrays.get("drift.edges")
        self._shares_FK = arrays.get("drift.shares")
        self._counts_FK = np.zeros((len(FEATURES), BINS))
        self._offset = 0

    def take(self, x_BF: Array) -> None:
        """Count newest minutes of scored windows, every eighth."""
        if self._edges_FE is None or not len(x_BF):
            return
        picked = x_BF[self._offset :: EVERY]
        self._offset = (self._offset - len(x_BF)) % EVERY
        if self._counts_FK[0].sum() > KEPT:
            self._counts_FK /= 2
        self._counts_FK += _counts(picked, self._edges_FE)

    def psi(self) -> dict[str, float]:
        """The index by feature; empty until enough windows were seen."""
        total = float(self._counts_FK[0].sum())
        if self._shares_FK is None or total < ENOUGH:
            return {}
        now = np.maximum(self._counts_FK / total, _FLOOR)
        then = np.maximum(self._shares_FK, _FLOOR)
        index_F = ((now - then) * np.log(now / then)).sum(axis=1)
        return dict(zip(FEATURES, index_F.tolist(), strict=True))
