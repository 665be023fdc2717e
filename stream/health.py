"""The health score of a card: 0–100, the worst of its parts, so that one word explains it.

Under 60 is unhealthy. The score is monotone in every part, and moves no more than the part does.
"""

from collections.abc import Mapping
from typing import Final

from stream.policy import HEALTH_UNHEALTHY, health_score

PARTS: Final = ("risk", "temperature", "telemetry", "history", "signs")
_MARGIN_CELSIUS: Final = 25.0
_PAST_CELSIUS: Final = 10.0
_COMPLETE: Final = 0.8
_HALF: Final = 0.5
_HISTORY_STEP: Final = 10.0
_HISTORY_LEAST: Final = 65.0


def risk_part(effective_risk: float, threshold: float) -> float:
    """60 where the alarm's own statistic (k-th largest of n) reaches the threshold."""
    return health_score(effective_risk, threshold)


def temperature_part(celsius: float | None, limit_celsius: float) -> float:
    """100 with 25 °C to spare, 60 at the limit, 0 ten degrees past it; unknown is no blame."""
    if celsius is None:
        return 100.0
    margin = limit_celsius - celsius
    if margin >= 0:
        return HEALTH_UNHEALTHY + (100.0 - HEALTH_UNHEALTHY) * min(1.0, margin / _MARGIN_CELSIUS)
    return HEALTH_UNHEALTHY * max(0.0, 1.0 + margin / _PAST_CELSIUS)


def telemetry_part(completeness: float) -> float:
    """100 from 80 % of the window's rows on, 80 at half of them, where scoring ends."""
    share = (completeness - _HALF) / (_COMPLETE - _HALF)
    return 80.0 + 20.0 * min(1.0, max(0.0, share))


def history_part(quarantines: int) -> float:
    """Ten points for each quarantine of late; never unhealthy by itself."""
    return max(_HISTORY_LEAST, 100.0 - _HISTORY_STEP * quarantines)


def signs_part(open_limit_or_loss: bool) -> float:
    """0 while a limit was passed or the card is lost."""
    return 0.0 if open_limit_or_loss else 100.0


def combine(parts: Mapping[str, float]) -> float:
    """The score: the worst part."""
    return min(parts.values(), default=100.0)


def because(parts: Mapping[str, float]) -> str | None:
    """The part that makes the score, or None at full health."""
    if not parts:
        return None
    name = min(parts, key=lambda part: (parts[part], PARTS.index(part)))
    return name if parts[name] < 100.0 else None
