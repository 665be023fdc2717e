"""One device as the fleet view keeps it, and how a minute row is read into it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from contract.signals import SIGNALS, STATES

RISKS_KEPT: Final = 60

VALUE_COLUMNS: Final[tuple[tuple[str, str], ...]] = tuple(
    (s.name, f"{s.name}_mean" if s.kind == "gauge" else f"{s.name}_last") for s in SIGNALS
)
"""Signal and the minute column that stands for its present value."""

NO_VALUES: Final[tuple[float | None, ...]] = (None,) * len(VALUE_COLUMNS)
_pick = itemgetter(*(column for _, column in VALUE_COLUMNS))


@dataclass(slots=True)
class DeviceView:
    """The newest known of one device.

    ``minute``, ``risk_minute`` and ``event_ts`` are Unix seconds of event time. ``values`` has the
    signals in the order of :data:`VALUE_COLUMNS`;
    ``risk`` is the one that decides, within 240 minutes; ``risks`` its last values, oldest first.
    """

    site: str
    node: str
    device: str
    index: int | None = None
    info: dict[str, str] = field(default_factory=dict)
    minute: int = 0
    reported_state: str = "unknown"
    life: str = "healthy"
    """Its state in ``stream.lifecycle``."""
    node_out: bool = False
    """Whether its whole node is to be left."""
    health_parts: dict[str, float] = field(default_factory=dict)
    """Parts of the health score that are under 100."""
    values: tuple[float | None, ...] = NO_VALUES
    status: str | None = None
    completeness: float | None = None
    challenger_risk: float | None = None
    risk: float | None = None
    risk_15m: float | None = None
    risk_60m: float | None = None
    health_score: float | None = None
    risks: deque[float | None] = field(default_factory=lambda: deque(maxlen=RISKS_KEPT))
    risk_minute: int = 0
    event_ts: float = 0.0


def number(value: object) -> float | None:
    """``value`` when it is a finite number, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


def row_values(row: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Values of a minute row in the order of :data:`VALUE_COLUMNS`, else ``None``."""
    try:
        found = _pick(row)
    except KeyError:
        return tuple(number(row.get(column)) for _, column in VALUE_COLUMNS)
    # Nearly all are ordinary floats; the bounds turn NaN and infinity away.
    return tuple(
        [
            v if v is None or (v.__class__ is float and -1e300 < v < 1e300) else number(v)
            for v in found
        ]
    )


def row_state(row: Mapping[str, Any], previous: str) -> str:
    """State a minute row shows: ``ok`` if any sample was, else the most frequent one."""
    if row.get("samples_ok"):
        return "ok"
    counts = {state: int(row.get(f"samples_{state}") or 0) for state in STATES}
    best = max(STATES, key=lambda state: counts[state])
    return best if counts[best] else previous
