"""One device as the fleet view keeps it, and how a minute row is read into it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from contract.signals import SIGNALS, STATES

RISKS_KEPT: Final = 60

VALUE_COLUMNS: Final[tuple[tuple[str, str], ...]] = tuple(
    (s.name, f"{s.name}_mean" if s.kind == "gauge" else f"{s.name}_last") for s in SIGNALS
)
"""Signal and the minute column that stands for its present value."""

@dataclass(slots=True)
class DeviceView:
    """The newest known of one device.

    ``minute``, ``risk_minute`` and ``event_ts`` are Unix seconds of event time; ``seen_at`` is the
    observer's time of the last news, ``None`` when they came after its last look. ``values`` has
    the signals in the order of :data:`VALUE_COLUMNS`; ``risks`` the last 60-minute risks, oldest
    first.
    """

    site: str
    node: str
    device: str
    index: int | None = None
    info: dict[str, str] = field(default_factory=dict)
    minute: int = 0
    reported_state: str = "unknown"
    move: str | None = None
    values: tuple[float | None, ...] = ()
    status: str | None = None
    completeness: float | None = None
    risk: float | None = None
    risk_15m: float | None = None
    risk_240m: float | None = None
    health_score: float | None = None
    risks: deque[float | None] = field(default_factory=lambda: deque(maxlen=RISKS_KEPT))
    risk_minute: int = 0
    event_ts: float = 0.0
    seen_at: float | None = None


def number(value: object) -> float | None:
    """``value`` when it is a finite number, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


def row_state(row: Mapping[str, Any], previous: str) -> str:
    """State a minute row shows: ``ok`` if any sample was, else the most frequent one."""
    counts = {state: int(row.get(f"samples_{state}") or 0) for state in STATES}
    if counts["ok"]:
        return "ok"
    best = max(STATES, key=lambda state: counts[state])
    return best if counts[best] else previous
