"""What everything that scores sees of a batch of windows, computed once.

Shapes: B windows, T minutes, C minute-row columns, F features, G aggregates, H history features,
S sums of the cards' histories.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.features import aggregates, features
from models.history import empty, history_features

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Windows ``rows_BTC`` with their features, aggregates, departures from the card's history,
    its sums, and how long the card has been seen (minutes, NaN where that is not known).
    """

    rows_BTC: Array
    x_BTF: Array
    z_BG: Array
    h_BH: Array
    sums_BS: Array
    age_minutes_B: Array


def see(rows_BTC: Array, sums_BS: Array | None = None, age_minutes_B: Array | None = None) -> Seen:
    """All that follows from windows and the histories of their cards (None: nothing is known)."""
    count = len(rows_BTC)
    sums = empty(count) if sums_BS is None else sums_BS
    age = np.full(count, np.nan, np.float32) if age_minutes_B is None else age_minutes_B
    x_BTF = features(rows_BTC)
    return Seen(rows_BTC, x_BTF, aggregates(x_BTF), history_features(sums, rows_BTC), sums, age)
