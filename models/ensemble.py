"""The served risk: the log-odds of the network and of the boosted trees, weighed.

A network reads the course of the hour, trees the departure from the card's history; each is
wrong on other cards. Both are trained on the same windows, so their log-odds have the same base
rate. Halves: other weights differ by less than one alarm more or less does (decision 21).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from models.windows import HORIZONS_MINUTES

DECISION_HORIZON_MINUTES: Final = 240
"""The risk that decides, and that thresholds belong to. An alarm is of use from four hours before
the failure on; of a shorter horizon, cards that die slowly do not come near to 1 in time."""
DECISION_HEAD: Final = HORIZONS_MINUTES.index(DECISION_HORIZON_MINUTES)
NETWORK_SHARE: Final = 0.5


def ensemble_logits(
    logits_BH: npt.NDArray[np.float32], tree_logit_B: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """The network's logits [B, H] with the deciding head joined by the trees'."""
    joined = logits_BH.copy()
    joined[:, DECISION_HEAD] *= NETWORK_SHARE
    joined[:, DECISION_HEAD] += (1 - NETWORK_SHARE) * np.nan_to_num(tree_logit_B)
    return joined
