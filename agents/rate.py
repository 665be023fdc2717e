"""dT/dt of a device, from the agent's own clock."""

GAP_INTERVALS = 2.5
"""No rate is formed across a pause longer than this many intervals: two lost ticks and more."""


class TemperatureRate:
    """Difference quotient of one device's temperature.

    A rate is None for the first sample, without a temperature, when time did not advance, and
    after a gap of more than ``GAP_INTERVALS`` intervals between two samples with a temperature.
    """

    __slots__ = ("_celsius", "_max_gap", "_seconds")

    def __init__(self, interval_seconds: float) -> None:
        self._max_gap = GAP_INTERVALS * interval_seconds
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
