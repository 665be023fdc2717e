"""Samples for the stream's tests, and an oracle that adds minutes up the plain way."""

import itertools
import math
import statistics
from collections import Counter
from typing import Any

from contract.signals import COUNTERS, GAUGES, STATES
from stream.validate import Sample, decode

START_MS = 1_767_225_600_000  # 2026-01-01, a full minute


def message(
    seq: int,
    ts_ms: int,
    devices: dict[str, dict[str, Any]],
    *,
    node: str = "rig1",
    boot_id: str = "boot-a",
    site: str = "lab",
) -> dict[str, Any]:
    """A telemetry message; ``devices`` maps a device id to its keys."""
    return {
        "schema": "rigcanary.telemetry/1",
        "site": site,
        "node": node,
        "boot_id": boot_id,
        "seq": seq,
        "ts": ts_ms / 1000,
        "interval_seconds": 5.0,
        "devices": [{"device": d, **values} for d, values in devices.items()],
    }


def sample(seq: int, ts_ms: int, devices: dict[str, dict[str, Any]], **kwargs: str) -> Sample:
    """The same, validated."""
    return decode(message(seq, ts_ms, devices, **kwargs), ts_ms, Counter())


def oracle(messages: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Minute row of each device from the messages of one minute, by the book."""
    unique = {(m["boot_id"], m["seq"]): m for m in messages}
    rows: dict[str, dict[str, float]] = {}
    ordered = sorted(unique.values(), key=lambda m: m["ts"])
    for device in sorted({d["device"] for m in ordered for d in m["devices"]}):
        seen = [d for m in ordered for d in m["devices"] if d["device"] == device]
        row: dict[str, float] = {"samples": len(seen)}
        for state in STATES:
            row[f"samples_{state}"] = sum(d.get("state", "ok") == state for d in seen)
        for signal in GAUGES:
            values = [d[signal.name] for d in seen if d.get(signal.name) is not None]
            row[f"{signal.name}_count"] = len(values)
            row[f"{signal.name}_mean"] = statistics.fmean(values) if values else math.nan
            row[f"{signal.name}_std"] = statistics.pstdev(values) if values else math.nan
            row[f"{signal.name}_min"] = min(values, default=math.nan)
            row[f"{signal.name}_max"] = max(values, default=math.nan)
        for signal in COUNTERS:
            values = [d[signal.name] for d in seen if d.get(signal.name) is not None]
            steps = [b - a for a, b in itertools.pairwise(values)]
            row[f"{signal.name}_count"] = len(values)
            row[f"{signal.name}_first"] = values[0] if values else math.nan
            row[f"{signal.name}_last"] = values[-1] if values else math.nan
            row[f"{signal.name}_increase"] = sum(s for s in steps if s > 0) if values else math.nan
        rows[device] = row
    return rows
