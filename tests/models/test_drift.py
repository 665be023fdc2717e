"""Population stability: nothing for the training windows themselves, much for a shifted one."""

import numpy as np

from models.drift import EVERY, Drift, reference
from models.series import FEATURES


def test_the_same_windows_do_not_drift_and_shifted_ones_do():
    rng = np.random.default_rng(0)
    trained = rng.normal(size=(4000, len(FEATURES))).astype(np.float32)
    trained[:, 5] = 0  # a sensor that no card has
    now = rng.normal(size=(8000, len(FEATURES))).astype(np.float32)
    now[:, 5], now[:, 7] = 0, now[:, 7] + 1.5
    drift = Drift(reference(trained))
    for at in range(0, len(now), 100):
        drift.take(now[at : at + 100])
    psi = drift.psi()
    assert list(psi) == list(FEATURES)
    assert psi[FEATURES[7]] > 0.5
    assert psi[FEATURES[5]] == 0
    assert max(v for name, v in psi.items() if name != FEATURES[7]) < 0.1


def test_every_eighth_window_is_looked_at_whatever_the_batches():
    drift = Drift(reference(np.zeros((10, len(FEATURES)), np.float32)))
    for size in (3, 1, 20, 7, 9, 1600):
        drift.take(np.zeros((size, len(FEATURES)), np.float32))
    assert drift._counts_FK[0].sum() == 1640 // EVERY


def test_nothing_is_said_of_a_few_windows_or_without_a_reference():
    few = Drift(reference(np.zeros((10, len(FEATURES)), np.float32)))
    few.take(np.zeros((16, len(FEATURES)), np.float32))
    assert few.psi() == {}
    none = Drift({})
    none.take(np.zeros((4000, len(FEATURES)), np.float32))
    assert none.psi() == {}
