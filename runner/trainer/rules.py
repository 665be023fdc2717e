"""The trainer's arithmetic: loss scale, batch sizes by health, weights of gradients. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

INITIAL_SCALE: Final = 2.0**15
GOOD_STEPS_TO_DOUBLE: Final = 2000
MAX_SCALE: Final = 2.0**24
"""Beyond it a float16 loss of any size overflows; doubling on would only make steps be skipped."""
HEALTH_WEIGHT: Final = 0.5
LOWEST_SHARE: Final = 0.25
"""Of the base batch. Without it a node at over three times the mean rate gets a negative batch."""
HIGHEST_SHARE: Final = 1.5


@dataclass(frozen=True)
class LossScale:
    """What the loss is multiplied by, so that float16 gradients do not vanish.

    It halves after a step that was not finite, and doubles after ``GOOD_STEPS_TO_DOUBLE`` good
    ones in a row. ``fixed`` is for float32: it stays 1.
    """

    value: float = INITIAL_SCALE
    good_steps: int = 0
    fixed: bool = False

    def after(self, ok: bool) -> "LossScale":
        """The scale of the next step."""
        if self.fixed:
            return self
        if not ok:
            return LossScale(max(self.value / 2, 1.0), 0)
        if self.good_steps + 1 >= GOOD_STEPS_TO_DOUBLE:
            return LossScale(min(self.value * 2, MAX_SCALE), 0)
        return LossScale(self.value, self.good_steps + 1)


def batch_sizes(base: int, failure_rates: Sequence[float]) -> list[int]:
    """Examples a step of each worker: base × (1 + 0.5 × (1 − rate ÷ mean rate)), clamped.

    A cluster without failures has no mean to compare with: each gets the base. No size is
    below 1.

    Raises:
        ValueError: for a rate that is negative or not finite, or a base below 1.
    """
    if base < 1:
        raise ValueError(f"a batch of {base} examples")
    if any(not math.isfinite(rate) or rate < 0 for rate in failure_rates):
        raise ValueError(f"failure rates are finite and not negative: {list(failure_rates)}")
    mean = sum(failure_rates) / len(failure_rates) if failure_rates else 0.0
    if mean == 0 or not math.isfinite(mean):
        return [base] * len(failure_rates)
    shares = (1 + HEALTH_WEIGHT * (1 - rate / mean) for rate in failure_rates)
    clamped = (min(max(share, LOWEST_SHARE), HIGHEST_SHARE) for share in shares)
    return [max(round(base * share), 1) for share in clamped]


def gradient_weights(sizes: Sequence[int]) -> list[float]:
    """What each worker multiplies its mean gradient by, so that their mean is the batch's.

    b_w × W ÷ Σb: without it the examples of a small batch would count for more.
    """
    total = sum(sizes)
    return [size * len(sizes) / total for size in sizes]
