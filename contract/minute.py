"""Columns of a minute row: what a device's samples of one minute are reduced to.

The same names in ``rigcanary.minutes``, in ``minutes.parquet``, in the windows and in the
features. A gauge gives five columns, a counter four; a statistic without samples is null
(NaN in arrays), ``count`` columns are then 0.
"""

from typing import Final

from contract.signals import COUNTERS, GAUGES, STATES

MINUTE_MS: Final = 60_000
WINDOW_MINUTES: Final = 60
LATENESS_MS: Final = 600_000
"""How long after a node's watermark passed a minute's end its samples still count."""
NODE_GRACE_MS: Final = 15_000
"""A minute closes when its node's watermark passes its end by this …"""
PARTITION_GRACE_MS: Final = 120_000
"""… or its partition's watermark by this (a silent node) …"""
IDLE_SECONDS: Final = 15.0
"""… or when the partition has been idle for this long, on the wall clock."""
FUTURE_MS: Final = 300_000
"""A time stamp further than this past the receiver's clock is unusable."""
MIN_COMPLETENESS: Final = 0.5
"""Share of a window's minute rows that must hold samples before it is scored."""

GAUGE_STATISTICS: Final = ("mean", "std", "min", "max", "count")
COUNTER_STATISTICS: Final = ("first", "last", "increase", "count")
"""``increase`` adds the positive steps between consecutive samples *inside* the minute, so that a
row depends on its own samples only; the step from the minute before is
``max(0, first - its last)``. A decrease is a reset and counts 0."""


def _columns() -> tuple[str, ...]:
    names = ["samples", *(f"samples_{state}" for state in STATES)]
    names += [f"{s.name}_{stat}" for s in GAUGES for stat in GAUGE_STATISTICS]
    names += [f"{s.name}_{stat}" for s in COUNTERS for stat in COUNTER_STATISTICS]
    return tuple(names)


COLUMNS: Final[tuple[str, ...]] = _columns()
"""Order of the last axis of every ``rows_…C`` array."""

COLUMN_INDEX: Final[dict[str, int]] = {name: i for i, name in enumerate(COLUMNS)}
