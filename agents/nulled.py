"""Values that no sensor can have are null in a source already, and counted there."""

from collections import Counter

from agents.plausible import impossible

Nulled = Counter[tuple[str, str]]
"""(sensor, reason) → how often a value was thrown away."""


def plausible(sensor: str, value: float | None, nulled: Nulled) -> float | None:
    """``value`` where it can be a reading of ``sensor`` (``agents.plausible``), else None.

    What is thrown away is counted in ``nulled`` with its reason.
    """
    reason = impossible(sensor, value)
    if reason is not None:
        nulled[sensor, reason] += 1
        return None
    return None if value != value else value
