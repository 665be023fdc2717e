"""Kafka values → rows of the history's tables (pure; contracts sections 4 and 9).

One row a device for minutes and risks, one row a value for decisions and events. Time stamps
are those of the observation. What is missing is null; a ``…_count`` that is absent is 0, as
the minute rows leave it out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from contract.minute import COLUMNS

UTC_MS: Final = pa.timestamp("ms", tz="UTC")
COUNT_COLUMNS: Final = frozenset(
    name for name in COLUMNS if name.startswith("samples") or name.endswith("_count")
)
RISKS: Final = ("completeness", "risk_15m", "risk_60m", "risk_240m", "health_score")


@dataclass(frozen=True)
class TableSpec:
    """A table of the history: ``key`` tells which rows are the same, the last one wins.

    ``time`` is the column whose UTC day decides the file.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    time: str


_WHERE: Final = [("site", pa.string()), ("node", pa.string()), ("device", pa.string())]
MINUTES: Final = TableSpec(
    "minutes",
    pa.schema([
        ("minute", UTC_MS), *_WHERE, ("index", pa.int32()), ("vendor", pa.string()),
        ("model", pa.string()), ("messages", pa.int32()), ("interval_seconds", pa.float64()),
        *((n, pa.int32() if n in COUNT_COLUMNS else pa.float64()) for n in COLUMNS),
    ]),
    ("site", "node", "device", "minute"),
    "minute",
)  # fmt: skip
RISK_TABLE: Final = TableSpec(
    "risks",
    pa.schema([
        ("minute", UTC_MS), *_WHERE, ("status", pa.string()), ("model_version", pa.string()),
        *((name, pa.float64()) for name in RISKS),
    ]),
    ("site", "node", "device", "minute"),
    "minute",
)  # fmt: skip
DECISIONS: Final = TableSpec(
    "decisions",
    pa.schema([
        ("decided_at", UTC_MS), *_WHERE, ("decision_id", pa.string()), ("type", pa.string()),
        ("dry_run", pa.bool_()), ("episode_id", pa.string()), ("cause", pa.string()),
        ("data", pa.string()),
    ]),
    ("decision_id",),
    "decided_at",
)  # fmt: skip
EVENTS: Final = TableSpec(
    "events",
    pa.schema([
        ("ts", UTC_MS), *_WHERE, ("boot_id", pa.string()), ("seq", pa.int64()),
        ("type", pa.string()), ("code", pa.int64()), ("message", pa.string()),
        ("data", pa.string()),
    ]),
    ("site", "node", "device", "boot_id", "seq", "type", "ts"),
    "ts",
)  # fmt: skip
TABLES: Final = (MINUTES, RISK_TABLE, DECISIONS, EVENTS)


def unix_ms(text: str) -> int:
    """RFC 3339 → Unix milliseconds UTC.

    Raises:
        ValueError: when it is not RFC 3339 with an offset.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no UTC offset")
    return round(at.timestamp() * 1000)


def decided_ms(value: Mapping[str, Any]) -> int:
    """When a decision was made, Unix milliseconds UTC.

    Raises:
        KeyError, TypeError, ValueError: when the value is not a decision.
    """
    if "decided_ms" in value:
        return int(value["decided_ms"])
    data = value["data"]
    return unix_ms(data.get("decided_at") or data["observed_at"])


def minutes_table(values: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Values of ``rigcanary.minutes`` as a table of :data:`MINUTES`."""
    head: list[tuple[Any, ...]] = []
    rows: list[list[Any]] = []
    for value in values:
        minute_ms = round(value["minute"] * 1000)
        messages, interval = value.get("messages"), value.get("interval_seconds")
        for entry in value["devices"]:
            get = entry.get
            head.append((
                minute_ms, value["site"], value["node"], entry["device"], get("index"),
                get("vendor"), get("model"), messages, interval,
            ))  # fmt: skip
            rows.append([get(name) for name in COLUMNS])
    x_RC = np.array(rows, dtype=np.float64).reshape(len(rows), len(COLUMNS))
    return pa.Table.from_arrays(
        [*_columns(MINUTES, head, 9), *_statistics(x_RC)], schema=MINUTES.schema
    )


def _statistics(x_RC: npt.NDArray[np.float64]) -> list[pa.Array]:
    columns = []
    for c, name in enumerate(COLUMNS):
        x_R = np.ascontiguousarray(x_RC[:, c])
        missing_R = np.isnan(x_R)
        if name in COUNT_COLUMNS:
            columns.append(pa.array(np.where(missing_R, 0, x_R).astype(np.int32)))
        else:
            columns.append(pa.array(x_R, mask=missing_R))
    return columns


def risks_table(values: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Values of ``rigcanary.risks`` as a table of :data:`RISK_TABLE`."""
    rows = [
        (
            round(value["minute"] * 1000), value["site"], value["node"], entry["device"],
            entry.get("status"), value.get("model_version"), *(entry.get(n) for n in RISKS),
        )
        for value in values
        for entry in value["devices"]
    ]  # fmt: skip
    return pa.Table.from_arrays(_columns(RISK_TABLE, rows), schema=RISK_TABLE.schema)


def decisions_table(values: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Values of ``rigcanary.decisions`` as a table of :data:`DECISIONS`."""
    rows = []
    for value in values:
        data = value["data"]
        rows.append((
            decided_ms(value), data.get("site"), data.get("node"), data.get("device"),
            value["decision_id"], value["type"], bool(value.get("dry_run")),
            data.get("episode_id"), data.get("cause"), orjson.dumps(data).decode(),
        ))  # fmt: skip
    return pa.Table.from_arrays(_columns(DECISIONS, rows), schema=DECISIONS.schema)


def events_table(values: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Values of ``rigcanary.events`` as a table of :data:`EVENTS`."""
    rows = [
        (
            round(v["ts"] * 1000), v["site"], v["node"], v.get("device"), v["boot_id"], v["seq"],
            v["type"], _integer(v.get("code")), _text(v.get("message")), orjson.dumps(v).decode(),
        )
        for v in values
    ]  # fmt: skip
    return pa.Table.from_arrays(_columns(EVENTS, rows), schema=EVENTS.schema)


def _integer(value: Any) -> int | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and math.isfinite(value) and abs(value) < 2**63 else None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _columns(spec: TableSpec, rows: Sequence[tuple[Any, ...]], count: int = 0) -> list[pa.Array]:
    types = spec.schema.types[: count or None]
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return [pa.array(c, type=t, from_pandas=True) for c, t in zip(columns, types, strict=True)]


BUILDERS: Final = {
    "minutes": minutes_table,
    "risks": risks_table,
    "decisions": decisions_table,
    "events": events_table,
}
"""Table name → function that makes it of Kafka values.

Raises ``KeyError``, ``TypeError``, ``ValueError`` or ``pa.ArrowException`` when a value is not
what the architecture says.
"""
