"""Numbers that stand in for sensors which NVIDIA cards do not have. Pure.

They follow one card over time; their absolute size depends on the assumptions named here, so no
limit is held against them, and a reading names them in its ``methods``.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Final

RIPPLE_METHOD: Final = "power-sample-spread"
VIBRATION_METHOD: Final = "fan-rpm-jitter"

SUPPLY_VOLTS: Final = 12.0
PATH_OHMS: Final = 0.010
"""Assumed: cable, connectors and planes between the supply and the card's regulator."""
MIN_POWER_SAMPLES: Final = 8
_MAD_TO_SIGMA: Final = 1.4826

JITTER_SAMPLES: Final = 12
MIN_JITTER_SAMPLES: Final = 6
SETTLING_SAMPLES: Final = 2
DUTY_STEP: Final = 0.015
"""A duty within this of the one before is constant: NVML gives whole percents."""
UNBALANCE_METRES: Final = 0.001
"""Assumed: the distance of a worn rotor's centre of mass from its axis."""
_G: Final = 9.80665


def ripple_volts(power_watts: Sequence[float]) -> float | None:
    """The ripple (V, peak to peak) that the unrest of consecutive power samples stands for.

    The unrest is the median step between neighbours, which a change of load does not move, taken
    as noise: peak to peak of a sine is 2√2 of its σ, and a step between two samples has √2 of
    it. It becomes volts as the drop of that current on the way to the card (P / 12 V × 10 mΩ).
    None with fewer than eight samples.
    """
    if len(power_watts) < MIN_POWER_SAMPLES:
        return None
    steps = [abs(b - a) for a, b in itertools.pairwise(power_watts)]
    sigma_watts = _MAD_TO_SIGMA * statistics.median(steps) / math.sqrt(2)
    return 2 * math.sqrt(2) * sigma_watts / SUPPLY_VOLTS * PATH_OHMS


class FanJitter:
    """The strength of a bearing's vibration (g, RMS) that a fan's unsteady speed stands for.

    Over the last minute of readings at constant duty, σ of the speed (from the steps between
    neighbours, so that a warming fan's drift does not count) varies the pull of a rotor 1 mm out
    of balance by 2 r ω σ_ω.
    """

    __slots__ = ("_duty", "_rpms", "_settling")

    def __init__(self) -> None:
        self._duty: float | None = None
        self._rpms: deque[float] = deque(maxlen=JITTER_SAMPLES)
        self._settling = 0

    def update(self, rpm: float | None, duty_ratio: float | None) -> float | None:
        """G after one more reading; None until six at one duty, and while the fan stands."""
        if not rpm or not duty_ratio:
            self._begin(None)
            return None
        if self._duty is None or abs(duty_ratio - self._duty) > DUTY_STEP:
            self._begin(duty_ratio)
        if self._settling:
            self._settling -= 1
            return None
        self._rpms.append(rpm)
        if len(self._rpms) < MIN_JITTER_SAMPLES:
            return None
        rpms = list(self._rpms)
        steps = [b - a for a, b in itertools.pairwise(rpms)]
        sigma_rpm = math.sqrt(sum(step * step for step in steps) / len(steps) / 2)
        per_second = 2 * math.pi / 60
        omega, sigma_omega = statistics.fmean(rpms) * per_second, sigma_rpm * per_second
        return 2 * UNBALANCE_METRES * omega * sigma_omega / _G

    def _begin(self, duty_ratio: float | None) -> None:
        self._duty = duty_ratio
        self._rpms.clear()
        self._settling = SETTLING_SAMPLES
