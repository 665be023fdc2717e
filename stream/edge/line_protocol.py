"""Kafka values → InfluxDB line protocol (contracts section 9; pure).

Numbers are always floats: one integer would fix a field's type for good and make the server
refuse the floats that follow. NaN and null are left out, and a point without fields with them.
Time stamps are nanoseconds of the observation; within its millisecond the sequence number of
an event keeps events of one series apart, which InfluxDB would otherwise make one.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from contract.minute import COLUMNS
from stream.edge.history_rows import RISKS, decided_ms

# A tag cannot hold control characters, and a backslash before a comma is ambiguous.
_TAG: Final = str.maketrans({
    **{chr(code): "_" for code in (*range(32), 127)},
    ",": r"\,", "=": r"\=", " ": r"\ ", "\\": "_",
})  # fmt: skip
_STRING: Final = str.maketrans({'"': r"\"", "\\": r"\\", "\n": " ", "\r": " "})
_MAX_STRING: Final = 60_000  # InfluxDB: string fields of at most 64 KB


def _tags(site: Any, node: Any, device: Any) -> str:
    tags = ""
    for name, value in (("device", device), ("node", node), ("site", site)):
        text = "" if value is None else str(value).translate(_TAG)
        if text:
            tags += f",{name}={text}"
    return tags


def _fields(values: Mapping[str, Any]) -> str:
    fields = []
    for name, value in values.items():
        if isinstance(value, bool):
            fields.append(f"{name}={'true' if value else 'false'}")
        elif isinstance(value, int | float):
            number = float(value)
            if math.isfinite(number):
                fields.append(f"{name}={number!r}")
        elif isinstance(value, str):
            fields.append(f'{name}="{value[:_MAX_STRING].translate(_STRING)}"')
    return ",".join(fields)


def _point(measurement: str, tags: str, fields: Mapping[str, Any], at_ns: int) -> Iterator[str]:
    text = _fields(fields)
    if text:
        yield f"{measurement}{tags} {text} {at_ns}"


def minutes(value: Mapping[str, Any]) -> Iterator[str]:
    """One point ``minute`` a device, with every statistic of its row."""
    at_ns = round(value["minute"] * 1000) * 1_000_000
    common = {"messages": value.get("messages"), "interval_seconds": value.get("interval_seconds")}
    for entry in value["devices"]:
        statistics = {name: entry.get(name) for name in COLUMNS}
        if _fields(statistics):
            tags = _tags(value["site"], value["node"], entry["device"])
            yield from _point("minute", tags, {**common, **statistics}, at_ns)


def risks(value: Mapping[str, Any]) -> Iterator[str]:
    """One point ``risk`` a scored device."""
    at_ns = round(value["minute"] * 1000) * 1_000_000
    for entry in value["devices"]:
        numbers = {name: entry.get(name) for name in RISKS}
        if _fields({k: v for k, v in numbers.items() if k != "completeness"}):
            tags = _tags(value["site"], value["node"], entry["device"])
            version = {"model_version": value.get("model_version")}
            yield from _point("risk", tags, {**numbers, **version}, at_ns)


def decisions(value: Mapping[str, Any]) -> Iterator[str]:
    """One point ``decision``, its data as JSON text beside the fields that are asked for."""
    data = value["data"]
    tags = _tags(data.get("site"), data.get("node"), data.get("device"))
    apart = zlib.crc32(value["decision_id"].encode()) % 1_000_000
    fields = {
        "type": value["type"], "decision_id": value["decision_id"],
        "episode_id": data.get("episode_id"), "cause": data.get("cause"),
        "risk": data.get("risk"), "health_score": data.get("health_score"),
        "dry_run": bool(value.get("dry_run")), "data": orjson.dumps(data).decode(),
    }  # fmt: skip
    yield from _point("decision", tags, fields, decided_ms(value) * 1_000_000 + apart)


def events(value: Mapping[str, Any]) -> Iterator[str]:
    """One point ``event``."""
    tags = _tags(value["site"], value["node"], value.get("device"))
    fields = {
        "type": value["type"], "code": value.get("code"), "message": value.get("message"),
        "boot_id": value["boot_id"], "seq": value["seq"],
    }  # fmt: skip
    at_ns = round(value["ts"] * 1000) * 1_000_000 + value["seq"] % 1_000_000
    yield from _point("event", tags, fields, at_ns)


LINES: Final = {"minutes": minutes, "risks": risks, "decisions": decisions, "events": events}
"""Table name → function that yields the lines of one Kafka value.

Raises ``KeyError``, ``TypeError`` or ``ValueError`` when it is not what the architecture says.
"""
