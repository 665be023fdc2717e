"""Minute rows: samples of a node and minute, added up so that the order does not matter.

Gauges are added up as integers (fixed point, ``Signal.fraction_bits``), so a row built from
samples in any order, in any number of merges, is the same to the bit. A row holds the
identities of the messages it was made of: merging the same message twice changes nothing,
which is what makes at-least-once delivery exact.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from contract.minute import COLUMN_INDEX, COLUMNS, MINUTE_MS
from contract.signals import COUNTERS, GAUGES, SIGNAL_NAMES, STATES
from contract.topics import node_key
from stream.validate import Sample

_GAUGE_S: Final = np.array([SIGNAL_NAMES.index(s.name) for s in GAUGES])
_COUNTER_S: Final = np.array([SIGNAL_NAMES.index(s.name) for s in COUNTERS])
_SCALE_G: Final = np.array([2.0**s.fraction_bits for s in GAUGES])
_N_GAUGES: Final = len(GAUGES)
_POINT: Final = np.dtype(
    [("device", "<u2"), ("counter", "u1"), ("offset_ms", "<u2"), ("value", "<f8")]
)
_INT_MAX: Final = np.iinfo(np.int32).max
_INT_MIN: Final = np.iinfo(np.int32).min

Identity = tuple[str, int]


def minute_of(ts_ms: int) -> int:
    """Start of the half-open minute that holds ``ts_ms``, in ms."""
    return ts_ms - ts_ms % MINUTE_MS


@dataclass(slots=True, eq=False)
class MinuteRecord:
    """What a node's samples of one minute add up to; devices in the order of their ids.

    ``n_DG`` counts, ``sum_DG`` and ``square_DG`` are fixed-point sums, ``low_DG`` and ``high_DG``
    fixed-point extremes of the gauges; ``state_DK`` counts samples by state; ``points`` holds
    every counter sample (device, counter, offset in ms, value), sorted.
    """

    site: str
    node: str
    minute_ms: int
    interval_seconds: float
    seen: frozenset[Identity]
    devices: tuple[str, ...]
    infos: tuple[dict[str, Any], ...]
    info_ms: tuple[int, ...]
    state_DK: npt.NDArray[np.int32]
    n_DG: npt.NDArray[np.int32]
    sum_DG: npt.NDArray[np.int64]
    square_DG: npt.NDArray[np.int64]
    low_DG: npt.NDArray[np.int32]
    high_DG: npt.NDArray[np.int32]
    points: npt.NDArray[Any] = field(repr=False)

    @property
    def key(self) -> str:
        """The node's identity, ``site/node``."""
        return node_key(self.site, self.node)


def reduce(samples: Sequence[Sample]) -> MinuteRecord:
    """Add up one node's samples of one minute; repeated identities count once.

    Raises:
        ValueError: without samples, or when they are of several nodes or minutes.
    """
    unique: dict[Identity, Sample] = {}
    for sample in samples:
        unique.setdefault(sample.identity, sample)
    if len({(s.key, minute_of(s.ts_ms)) for s in unique.values()}) != 1:
        raise ValueError("samples of exactly one node and minute are needed")
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in unique.values():
        groups.setdefault(sample.devices, []).append(sample)
    return _combine([_reduce_group(group) for group in groups.values()])


def merge(old: MinuteRecord | None, samples: Sequence[Sample]) -> MinuteRecord | None:
    """``old`` with the samples that it does not hold yet; None when it holds them all."""
    fresh = [s for s in samples if old is None or s.identity not in old.seen]
    if not fresh:
        return None
    new = reduce(fresh)
    return new if old is None else _combine([old, new])


def _reduce_group(samples: list[Sample]) -> MinuteRecord:
    """Samples that list the same devices in the same order."""
    first = samples[0]
    order = sorted(range(len(first.devices)), key=first.devices.__getitem__)
    x_NDS = np.stack([s.x_DS for s in samples])[:, order, :]
    state_ND = np.stack([s.state_D for s in samples])[:, order]
    x_NDG = x_NDS[:, :, _GAUGE_S]
    there_NDG = ~np.isnan(x_NDG)
    q_NDG = np.rint(np.where(there_NDG, x_NDG, 0.0) * _SCALE_G).astype(np.int64)
    newest = max(samples, key=lambda s: (s.ts_ms, s.boot_id, s.seq))
    return MinuteRecord(
        site=first.site,
        node=first.node,
        minute_ms=minute_of(first.ts_ms),
        interval_seconds=min(s.interval_seconds for s in samples),
        seen=frozenset(s.identity for s in samples),
        devices=tuple(first.devices[i] for i in order),
        infos=tuple(newest.infos[i] for i in order),
        info_ms=(newest.ts_ms,) * len(order),
        state_DK=np.stack(
            [(state_ND == k).sum(0, dtype=np.int32) for k in range(len(STATES))], axis=1
        ),
        n_DG=there_NDG.sum(0, dtype=np.int32),
        sum_DG=q_NDG.sum(0),
        square_DG=(q_NDG * q_NDG).sum(0),
        low_DG=np.where(there_NDG, q_NDG, _INT_MAX).min(0).astype(np.int32),
        high_DG=np.where(there_NDG, q_NDG, _INT_MIN).max(0).astype(np.int32),
        points=_points(samples, x_NDS[:, :, _COUNTER_S]),
    )


def _points(samples: list[Sample], x_NDK: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    n, device, counter = np.nonzero(~np.isnan(x_NDK))
    points = np.empty(len(n), dtype=_POINT)
    points["device"] = device
    points["counter"] = counter
    points["offset_ms"] = np.array([s.ts_ms % MINUTE_MS for s in samples], dtype=np.uint16)[n]
    points["value"] = x_NDK[n, device, counter]
    return _sorted(points)


def _sorted(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """By device, counter, instant, value; several times faster than sorting the structures."""
    order = np.lexsort([points[name] for name in ("value", "offset_ms", "counter", "device")])
    return points[order]


def _combine(records: list[MinuteRecord]) -> MinuteRecord:
    if len(records) == 1:
        return records[0]
    first = records[0]
    devices = tuple(sorted({d for r in records for d in r.devices}))
    row_of = {d: i for i, d in enumerate(devices)}
    n_devices = len(devices)
    state_DK = np.zeros((n_devices, len(STATES)), np.int32)
    n_DG = np.zeros((n_devices, _N_GAUGES), np.int32)
    sum_DG = np.zeros((n_devices, _N_GAUGES), np.int64)
    square_DG = np.zeros((n_devices, _N_GAUGES), np.int64)
    low_DG = np.full((n_devices, _N_GAUGES), _INT_MAX, np.int32)
    high_DG = np.full((n_devices, _N_GAUGES), _INT_MIN, np.int32)
    newest: dict[str, tuple[int, bytes, dict[str, Any]]] = {}
    points = []
    for r in records:
        at = np.array([row_of[d] for d in r.devices], dtype=np.intp)
        state_DK[at] += r.state_DK
        n_DG[at] += r.n_DG
        sum_DG[at] += r.sum_DG
        square_DG[at] += r.square_DG
        low_DG[at] = np.minimum(low_DG[at], r.low_DG)
        high_DG[at] = np.maximum(high_DG[at], r.high_DG)
        moved = r.points.copy()
        moved["device"] = at[moved["device"]] if len(at) else moved["device"]
        points.append(moved)
        for device, info, ms in zip(r.devices, r.infos, r.info_ms, strict=True):
            candidate = (ms, orjson.dumps(info, option=orjson.OPT_SORT_KEYS), info)
            if device not in newest or candidate[:2] > newest[device][:2]:
                newest[device] = candidate
    return MinuteRecord(
        site=first.site,
        node=first.node,
        minute_ms=first.minute_ms,
        interval_seconds=min(r.interval_seconds for r in records),
        seen=frozenset().union(*(r.seen for r in records)),
        devices=devices,
        infos=tuple(newest[d][2] for d in devices),
        info_ms=tuple(newest[d][0] for d in devices),
        state_DK=state_DK,
        n_DG=n_DG,
        sum_DG=sum_DG,
        square_DG=square_DG,
        low_DG=low_DG,
        high_DG=high_DG,
        points=_sorted(np.concatenate(points)),
    )


def rows(record: MinuteRecord) -> npt.NDArray[np.float64]:
    """The record as ``rows_DC`` in the order of ``contract.minute.COLUMNS``, NaN where missing."""
    rows_DC = np.full((len(record.devices), len(COLUMNS)), np.nan)
    rows_DC[:, 0] = record.state_DK.sum(1)
    rows_DC[:, 1 : 1 + len(STATES)] = record.state_DK
    n_DG = record.n_DG.astype(np.float64)
    there_DG = record.n_DG > 0
    divisor_DG = np.where(there_DG, n_DG, 1.0)
    mean_DG = record.sum_DG / divisor_DG
    # Population variance by moments, clipped: rounding can leave a tiny negative number.
    variance_DG = np.maximum(record.square_DG / divisor_DG - mean_DG * mean_DG, 0.0)
    statistics = (mean_DG, np.sqrt(variance_DG), record.low_DG, record.high_DG)
    start = COLUMN_INDEX[f"{GAUGES[0].name}_mean"]
    width = len(statistics) + 1
    for offset, value_DG in enumerate(statistics):
        columns = slice(start + offset, start + width * _N_GAUGES, width)
        rows_DC[:, columns] = np.where(there_DG, value_DG / _SCALE_G, np.nan)
    rows_DC[:, start + width - 1 : start + width * _N_GAUGES : width] = n_DG
    _fill_counters(record, rows_DC)
    return rows_DC


def _fill_counters(record: MinuteRecord, rows_DC: npt.NDArray[np.float64]) -> None:
    points = record.points
    for k, counter in enumerate(COUNTERS):
        first, last, increase, count = (
            COLUMN_INDEX[f"{counter.name}_{s}"] for s in ("first", "last", "increase", "count")
        )
        rows_DC[:, count] = 0
        mine = points[points["counter"] == k]
        if not len(mine):
            continue
        device, value = mine["device"], mine["value"]
        starts = np.flatnonzero(np.r_[True, device[1:] != device[:-1]])
        ends = np.r_[starts[1:], len(mine)]
        step = np.diff(value, prepend=value[0])
        step[starts] = 0  # the step to another device's first sample is none
        at = device[starts]
        rows_DC[at, first] = value[starts]
        rows_DC[at, last] = value[ends - 1]
        rows_DC[at, increase] = np.add.reduceat(np.maximum(step, 0), starts)
        rows_DC[at, count] = ends - starts


# -- on Kafka and in the table ------------------------------------------------------------------

_ARRAYS: Final = (
    ("state_DK", "<i4", len(STATES)),
    ("n_DG", "<i4", _N_GAUGES),
    ("sum_DG", "<i8", _N_GAUGES),
    ("square_DG", "<i8", _N_GAUGES),
    ("low_DG", "<i4", _N_GAUGES),
    ("high_DG", "<i4", _N_GAUGES),
)
_VERSION: Final = 1


def pack(record: MinuteRecord) -> bytes:
    """The record as bytes for the table; equal records give equal bytes."""
    header = orjson.dumps(
        {
            "v": _VERSION,
            "site": record.site,
            "node": record.node,
            "minute": record.minute_ms,
            "interval": record.interval_seconds,
            "seen": _ranges(record.seen),
            "devices": record.devices,
            "infos": record.infos,
            "info_ms": record.info_ms,
        },
        option=orjson.OPT_SORT_KEYS,
    )
    arrays = [getattr(record, name).astype(dtype).tobytes() for name, dtype, _ in _ARRAYS]
    body = len(header).to_bytes(4, "little") + header + b"".join(arrays) + record.points.tobytes()
    return zlib.compress(body, 1)


def unpack(data: bytes) -> MinuteRecord:
    """The inverse of :func:`pack`.

    Raises:
        ValueError: when the bytes are not of this version.
    """
    try:
        body = zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(f"not a packed minute record: {error}") from error
    end = 4 + int.from_bytes(body[:4], "little")
    header = orjson.loads(body[4:end])
    if header["v"] != _VERSION:
        raise ValueError(f"minute record of version {header['v']}, {_VERSION} is understood")
    n_devices = len(header["devices"])
    arrays: dict[str, Any] = {}
    for name, dtype, width in _ARRAYS:
        count = n_devices * width
        arrays[name] = np.frombuffer(body, dtype, count, end).reshape(n_devices, width)
        end += count * np.dtype(dtype).itemsize
    return MinuteRecord(
        site=header["site"],
        node=header["node"],
        minute_ms=header["minute"],
        interval_seconds=header["interval"],
        seen=frozenset(
            (boot, seq)
            for boot, spans in header["seen"].items()
            for low, high in spans
            for seq in range(low, high + 1)
        ),
        devices=tuple(header["devices"]),
        infos=tuple(header["infos"]),
        info_ms=tuple(header["info_ms"]),
        points=np.frombuffer(body, _POINT, -1, end) if end < len(body) else np.empty(0, _POINT),
        **arrays,
    )


def _ranges(seen: Iterable[Identity]) -> dict[str, list[list[int]]]:
    """Identities as ``{boot_id: [[first, last], …]}``: consecutive ones take one pair."""
    spans: dict[str, list[list[int]]] = {}
    for boot, seq in sorted(seen):
        mine = spans.setdefault(boot, [])
        if mine and mine[-1][1] == seq - 1:
            mine[-1][1] = seq
        else:
            mine.append([seq, seq])
    return spans


_DECIMALS: Final = {
    f"{s.name}_{stat}": max(3, round(s.fraction_bits * 0.302))
    for s in GAUGES
    for stat in ("mean", "std", "min", "max")
}
_POWER_C: Final = np.array([10.0 ** _DECIMALS.get(name, 0) for name in COLUMNS])
_IS_FLOAT_C: Final = tuple(name in _DECIMALS for name in COLUMNS)
_SAYS_NULL_C: Final = tuple(name.endswith(("_mean", "_last")) for name in COLUMNS)
_SAYS_ZERO_C: Final = tuple(not name.endswith("_count") for name in COLUMNS)


def published(
    record: MinuteRecord, rows_DC: npt.NDArray[np.float64] | None = None
) -> dict[str, Any]:
    """The value for ``rigcanary.minutes``: contract names, null where missing.

    Of a sensor without samples only ``…_mean`` stands there (null); the rest follows from it.
    ``rows_DC`` is what :func:`rows` gives for the record, where the caller has it already.
    """
    if rows_DC is None:
        rows_DC = rows(record)
    rounded = (np.rint(rows_DC * _POWER_C) / _POWER_C).tolist()
    devices = []
    for device, info, row in zip(record.devices, record.infos, rounded, strict=True):
        entry: dict[str, Any] = {"device": device, **info}
        for name, value, is_float, says_null, says_zero in zip(
            COLUMNS, row, _IS_FLOAT_C, _SAYS_NULL_C, _SAYS_ZERO_C, strict=True
        ):
            if value != value:  # NaN
                if says_null:
                    entry[name] = None
            elif is_float:
                entry[name] = value
            elif value or says_zero:
                entry[name] = int(value)
        devices.append(entry)
    return {
        "schema": "rigcanary.minutes/1",
        "site": record.site,
        "node": record.node,
        "minute": record.minute_ms // 1000,
        "messages": len(record.seen),
        "interval_seconds": record.interval_seconds,
        "devices": devices,
    }
