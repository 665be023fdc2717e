"""Rows in the order of time → the messages that their rigs would have sent."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agents.changes import DeviceChanges
from agents.messages import in_order
from agents.rate import TemperatureRate
from agents.source import DeviceReading
from contract.message import MAX_DEVICES
from contract.signals import STATES

DEFAULT_INTERVAL_SECONDS: Final = 5.0
_RATE: Final = "temperature_rate_celsius_per_second"

NodeName = tuple[str | None, str]
"""(site, or None where the data set names none; node)."""


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """What one node sent at one instant. ``events`` are (device, type, message).

    ``ts`` is Unix seconds UTC. There is more than one tick of a node and instant where a
    message cannot hold all of its rows: a device that stands twice, or over 256 devices.
    """

    node: NodeName
    ts: float
    interval_seconds: float
    devices: list[DeviceReading]
    events: list[tuple[str, str, str]]


@dataclass(slots=True)
class _Device:
    index: int
    rate: TemperatureRate
    changes: DeviceChanges = field(default_factory=DeviceChanges)


@dataclass(slots=True)
class _Node:
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    devices: dict[str, _Device] = field(default_factory=dict)


def ticks(tables: Iterable[pa.Table], sensors: Sequence[str]) -> Iterator[RecordedTick]:
    """The ticks of ``tables``, as :func:`agents.fleet.ordered.ordered_tables` gives them.

    Every row is in exactly one tick. dT/dt is computed by the agent's rule where the data set
    has no such column. A node's interval is the median of its steps in time within a table.
    """
    nodes: dict[NodeName, _Node] = {}
    compute_rate = _RATE not in sensors
    for table in tables:
        yield from _ticks_of(table, tuple(sensors), nodes, compute_rate)


def _ticks_of(
    table: pa.Table, sensors: tuple[str, ...], nodes: dict[NodeName, _Node], compute_rate: bool
) -> Iterator[RecordedTick]:
    ts_ms = table["ts_ms"].to_numpy()
    sites, names = table["site"].to_pylist(), table["node"].to_pylist()
    device_names, models = table["device"].to_pylist(), table["model"].to_pylist()
    states = table["state"].to_pylist()
    values_RS: npt.NDArray[np.float64] = np.column_stack(
        [table[name].to_numpy() for name in sensors] or [np.empty((len(ts_ms), 0))]
    )
    starts = _group_starts(ts_ms, sites, names)
    _learn_intervals(ts_ms, sites, names, starts, nodes)
    for start, end in zip(starts, [*starts[1:], len(ts_ms)], strict=True):
        key = (sites[start], names[start])
        node = nodes[key]
        ts = float(ts_ms[start]) / 1000
        readings: list[DeviceReading] = []
        present: set[str] = set()
        events: list[tuple[str, str, str]] = []
        for row, values in zip(range(start, end), values_RS[start:end].tolist(), strict=True):
            name = device_names[row]
            if name in present or len(readings) == MAX_DEVICES:
                yield RecordedTick(key, ts, node.interval_seconds, readings, events)
                readings, present, events = [], set(), []
            present.add(name)
            device = node.devices.get(name)
            if device is None:
                device = _Device(len(node.devices), TemperatureRate(node.interval_seconds))
                node.devices[name] = device
            reading = _reading(name, device.index, states[row], models[row])
            reading.update(zip(sensors, (v if v == v else None for v in values), strict=True))
            if compute_rate:
                reading[_RATE] = device.rate.update(reading.get("temperature_celsius"), ts)
            events += ((name, *change) for change in device.changes.observe(reading))
            readings.append(in_order(reading))
        yield RecordedTick(key, ts, node.interval_seconds, readings, events)


def _reading(name: str, index: int, state: str | None, model: str | None) -> DeviceReading:
    known = state if state in STATES else "ok" if state is None else "unknown"
    reading: DeviceReading = {"device": name, "index": index, "state": known}
    if model is not None:
        reading["model"] = model
    return reading


def _group_starts(ts_ms: npt.NDArray[np.int64], sites: list[Any], names: list[Any]) -> list[int]:
    """Where a new instant or node begins."""
    starts = [0]
    for row, moved in enumerate((np.diff(ts_ms) != 0).tolist(), start=1):
        if moved or names[row] != names[row - 1] or sites[row] != sites[row - 1]:
            starts.append(row)
    return starts


def _learn_intervals(
    ts_ms: npt.NDArray[np.int64],
    sites: list[Any],
    names: list[Any],
    starts: list[int],
    nodes: dict[NodeName, _Node],
) -> None:
    times_ms: dict[NodeName, list[int]] = {}
    for start in starts:
        times_ms.setdefault((sites[start], names[start]), []).append(int(ts_ms[start]))
    for key, times in times_ms.items():
        node = nodes.setdefault(key, _Node())
        if len(times) > 1:
            node.interval_seconds = float(np.median(np.diff(times))) / 1000
