"""Sample counts of a minute as if the rig sampled every five seconds.

The model learned what missing telemetry looks like at the agents' usual cadence: twelve samples a
minute. Any other cadence is fine (contracts section 3) and must not look like trouble, nor may one
sample more than usual.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMNS

USUAL_SECONDS: Final = 5.0
USUAL_SAMPLES: Final = 12.0
_COUNT_C: Final = np.array([n.startswith("samples") or n.endswith("_count") for n in COLUMNS])
_SLOW_SAMPLES: Final = USUAL_SAMPLES / 2


def at_usual_cadence(
    rows_DC: npt.NDArray[np.float64], interval_seconds: float
) -> npt.NDArray[np.float64]:
    """Rows with their counts scaled from the declared cadence to twelve a minute, at most."""
    expected = rows_DC[:, :1] * (interval_seconds / USUAL_SECONDS)
    scaled = np.minimum(expected, USUAL_SAMPLES)
    factor = np.divide(scaled, rows_DC[:, :1], out=np.ones_like(scaled), where=rows_DC[:, :1] > 0)
    return np.where(_COUNT_C, rows_DC * factor, rows_DC)


def without_undeclared_cadence(rows_BTC: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Windows that were slow throughout, whatever they declared: a minute with samples is full.

    A single minute without any is bridged with the one before it: at one sample a minute a jitter
    of a second puts two samples into one minute and none into the next.
    """
    samples_BT = rows_BTC[:, :, 0]
    there_BT = samples_BT > 0
    typical_B = np.array(
        [
            np.median(s[there]) if there.any() else 0.0
            for s, there in zip(samples_BT, there_BT, strict=True)
        ]
    )
    slow_B = (typical_B > 0) & (typical_B < _SLOW_SAMPLES)
    if not slow_B.any():
        return rows_BTC
    factor_BT = np.where(
        there_BT & slow_B[:, None], USUAL_SAMPLES / np.where(there_BT, samples_BT, 1.0), 1.0
    )
    full_BTC = np.where(_COUNT_C, rows_BTC * factor_BT[:, :, None], rows_BTC).astype(np.float32)
    bridged_BT = np.zeros_like(there_BT)
    bridged_BT[:, 1:] = ~there_BT[:, 1:] & there_BT[:, :-1] & slow_B[:, None]
    before_BTC = np.concatenate([full_BTC[:, :1], full_BTC[:, :-1]], axis=1)
    return np.where(bridged_BT[:, :, None], before_BTC, full_BTC)
