"""The members of a model fitted on windows: the network and the baselines, trees among them."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from models import baseline
from models.baseline import Baselines
from models.card import Model
from models.drift import reference
from models.ensemble import DECISION_HEAD
from models.examples import Examples
from models.features import aggregates
from models.fit import FitOptions, fit_network
from models.network import to_arrays

_CHUNK: Final = 512
BASE_RATE_SHARE: Final = 0.3
"""Share of the learning rate with which a network goes on from a trained one."""

BASE_PATIENCE: Final = 2
"""Epochs without a better one after which going on ends: it is near its best at the start."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """What a model folder holds beside its card; ``epochs`` are the losses of each."""

    weights: dict[str, npt.NDArray[Any]]
    baselines: Baselines
    drift: dict[str, npt.NDArray[Any]]
    epochs: list[dict[str, float]]
    best_epoch: int

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What goes into ``baselines.npz``."""
        return self.baselines.to_arrays() | self.drift


def fit_members(
    training: Examples,
    watching: Examples,
    options: FitOptions,
    seed: int,
    say: Any,
    base: Model | None,
) -> Members:
    """Fit on ``training``; the network's epochs are watched on ``watching``.

    With ``base`` the network goes on from that model's, and what its trees say is a column of
    the new ones.
    """
    weights, prior = None, None
    if base is not None:
        weights = base.weights
        own = Baselines.from_arrays(base.baselines)
        prior = own.prior or own.trees
        options = replace(
            options,
            learning_rate=options.learning_rate * BASE_RATE_SHARE,
            patience=min(options.patience, BASE_PATIENCE),
        )
    known = training.y_NH[:, DECISION_HEAD] >= 0
    z_NG = np.concatenate(
        [
            aggregates(training.x_NTF[i : i + _CHUNK].astype(np.float32))
            for i in range(0, len(training.x_NTF), _CHUNK)
        ]
    )
    baselines = baseline.fit(
        z_NG[known],
        training.h_NH[known],
        training.age_minutes_N[known],
        training.y_NH[known, DECISION_HEAD] == 1,
        seed,
        prior,
    )
    fitted = fit_network(
        (training.x_NTF, training.y_NH), (watching.x_NTF, watching.y_NH), options, say, weights
    )
    arrays = to_arrays(fitted.model, fitted.scaler)
    healthy = training.y_NH[:, DECISION_HEAD] == 0
    drift = reference(training.x_NTF[healthy, -1].astype(np.float32))
    return Members(dict(arrays), baselines, drift, fitted.history, fitted.best_epoch)
