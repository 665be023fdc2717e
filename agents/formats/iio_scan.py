"""The layout of Linux IIO's buffer: ``scan_elements`` → samples.

A scan holds one sample of each enabled channel in the order of their indices, each at a multiple
of its own size, the whole at a multiple of the largest.
"""

import itertools
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_TYPE: Final = re.compile(
    r"(?P<endian>be|le):(?P<sign>[su])(?P<bits>\d+)/(?P<storage>\d+)(?:X(?P<repeat>\d+))?"
    r">>(?P<shift>\d+)"
)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Element:
    """One channel's place in a scan: its ``index``, and its ``…_type`` taken apart."""

    name: str
    index: int
    big_endian: bool
    signed: bool
    bits: int
    storage_bytes: int
    shift: int

    @classmethod
    def parse(cls, name: str, index: int, type_: str) -> "Element":
        """Of a channel's ``…_index`` and ``…_type``, such as ``le:s12/16>>4``.

        Raises:
            ValueError: it is no such type, or one that is repeated (quaternions).
        """
        found = _TYPE.fullmatch(type_.strip())
        if found is None or int(found["repeat"] or 1) != 1:
            raise ValueError(f"{name}: scan type {type_!r} is not understood")
        bits, storage = int(found["bits"]), int(found["storage"])
        shift = int(found["shift"])
        if storage not in (8, 16, 32, 64) or not 0 < bits <= storage or bits + shift > storage:
            raise ValueError(f"{name}: scan type {type_!r} does not fit its storage")
        return cls(
            name, index, found["endian"] == "be", found["sign"] == "s", bits, storage // 8, shift
        )

    @property
    def dtype(self) -> np.dtype[np.void]:
        return np.dtype(f"{'>' if self.big_endian else '<'}u{self.storage_bytes}")


def offsets(elements: list[Element]) -> tuple[dict[str, int], int]:
    """(byte offset of each element, bytes of a scan)."""
    place = 0
    found = {}
    largest = 1
    for element in sorted(elements, key=lambda e: e.index):
        size = element.storage_bytes
        place = -(-place // size) * size
        found[element.name] = place
        place += size
        largest = max(largest, size)
    return found, -(-place // largest) * largest


def decode(data: bytes, elements: list[Element]) -> dict[str, npt.NDArray[np.int64]]:
    """The raw samples of each element, oldest first; an unfinished scan at the end is left out."""
    where, size = offsets(elements)
    scans = len(data) // size
    out = {}
    for element in elements:
        layout = np.dtype(
            {
                "names": ["value"],
                "formats": [element.dtype],
                "offsets": [where[element.name]],
                "itemsize": size,
            }
        )
        stored = np.frombuffer(data, dtype=layout, count=scans)["value"].astype(np.uint64)
        value = stored >> np.uint64(element.shift)
        if element.bits < 64:
            value &= np.uint64((1 << element.bits) - 1)
        signed = value.view(np.int64)
        if element.signed and element.bits < 64:
            half = np.int64(1 << (element.bits - 1))
            signed = (signed ^ half) - half
        out[element.name] = signed
    return out


def longest_run(nanoseconds_T: npt.NDArray[np.int64]) -> tuple[slice, float | None]:
    """(the longest run of scans without a gap, its sampling rate in Hz), from their time stamps.

    A step of more than 1.5 times the usual one is a gap: the buffer overflowed there.
    """
    everything = slice(0, len(nanoseconds_T))
    if len(nanoseconds_T) < 3:
        return everything, None
    steps_T = np.diff(nanoseconds_T)
    usual = float(np.median(steps_T))
    if usual <= 0:
        return everything, None
    gaps = np.nonzero((steps_T > 1.5 * usual) | (steps_T <= 0))[0] + 1
    edges = [0, *gaps.tolist(), len(nanoseconds_T)]
    length, start = max((b - a, a) for a, b in itertools.pairwise(edges))
    run = nanoseconds_T[start : start + length]
    rate = 1e9 * (length - 1) / float(run[-1] - run[0]) if length > 2 else 1e9 / usual
    return slice(start, start + length), rate
