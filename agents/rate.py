"""dT/dt of a device, from the agent's own clock."""

from typing import Final

GAP_SECONDS: Final = 60.0
GAP_INTERVALS: Final = 2.5
"""No rate is formed across a pause longer than both of these: it would say nothing of now."""


class TemperatureRate:
    """Difference quotient of one device's temperature.

    A rate is None for the first sample, without a temperature, when time did not advance, and
    after a gap (60 s, or 2.5 intervals where that is more) between two temperatures.
    """

    __slots__ = ("_celsius", "_max_gap", "_seconds")

    def __init__(self, interval_seconds: float) -> None:
        self._max_gap = max(GAP_SECONDS, GAP_INTERVALS * interval_seconds)
        self._celsius: float | None = None
        self._seconds = 0.0

    def update(self, celsius: float | None, seconds: float) -> float | None:
        """°C/s from the sample before to this one, taken at ``seconds`` of a monotonic clock."""
        if celsius is None or celsius != celsius:
            return None
        elapsed = seconds - self._seconds
        before = self._celsius
        self._celsius, self._seconds = celsius, seconds
        if before is None or not 0 < elapsed <= self._max_gap:
            return None
        return (celsius - before) / elapsed

    def forget(self) -> None:
        """Begin anew: the device was lost, and what comes back is not what was there."""
        self._celsius = None
