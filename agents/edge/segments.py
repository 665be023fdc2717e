"""The files of the outbox: append-only segments of records with a check sum each.

A record is a header (lengths, CRC-32, wall time it was accepted at in Unix milliseconds), the
topic and the payload. A process that dies in the middle of an append leaves a torn last record,
which a reader does not see; so does a machine that loses power, at the place it had got to.
"""

import logging
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

MAGIC: Final = b"RCO1"
_HEADER: Final = struct.Struct("<IIQH")  # payload bytes, CRC-32, accepted at (ms), topic bytes
_NAME: Final = re.compile(r"(\d{10})\.seg")
MAX_RECORD_BYTES: Final = 1 << 20
"""A header that claims more than this is no header."""


class Record(NamedTuple):
    """One message as it lies in a segment; ``end`` is the offset behind it."""

    topic: str
    payload: bytes
    accepted_ms: int
    end: int


@dataclass(slots=True)
class Segment:
    """One file and what of it is still needed.

    ``taken`` holds the indices of records that the backlog must not give out: they are on
    their way or were delivered. ``read`` and ``read_offset`` are where the backlog goes on.
    ``first_at`` and ``newest_at`` are on the outbox's monotonic clock.
    """

    number: int
    path: Path
    size: int = len(MAGIC)
    records: int = 0
    done: int = 0
    first_at: float = 0.0
    newest_at: float = 0.0
    read: int = 0
    read_offset: int = len(MAGIC)
    taken: set[int] = field(default_factory=set)
    synced: int = 0

    @property
    def pending(self) -> int:
        """Records not yet delivered."""
        return self.records - self.done

    def clear(self) -> None:
        """Forget the records of an emptied file."""
        self.size = self.read_offset = len(MAGIC)
        self.records = self.done = self.read = self.synced = 0
        self.taken.clear()


def pack(topic: str, payload: bytes, accepted_ms: int) -> bytes:
    """One record."""
    name = topic.encode()
    body = name + payload
    accepted_ms = max(0, accepted_ms)
    crc = _checksum(body, len(name), accepted_ms)
    return _HEADER.pack(len(payload), crc, accepted_ms, len(name)) + body


def _checksum(body: bytes, topic_bytes: int, accepted_ms: int) -> int:
    return zlib.crc32(body, zlib.crc32(b"%d %d" % (topic_bytes, accepted_ms)))


def read_record(descriptor: int, offset: int) -> Record | None:
    """The record at ``offset``; None at the end, or where no whole record is."""
    head = os.pread(descriptor, _HEADER.size, offset)
    if len(head) < _HEADER.size:
        return None
    payload_bytes, crc, accepted_ms, topic_bytes = _HEADER.unpack(head)
    length = topic_bytes + payload_bytes
    if length > MAX_RECORD_BYTES:
        return None
    body = os.pread(descriptor, length, offset + _HEADER.size)
    if len(body) < length or _checksum(body, topic_bytes, accepted_ms) != crc:
        return None
    try:
        topic = body[:topic_bytes].decode()
    except UnicodeDecodeError:
        return None
    end = offset + _HEADER.size + length
    return Record(topic, body[topic_bytes:], accepted_ms, end)


def records(descriptor: int) -> Iterator[Record]:
    """Every whole record from the beginning."""
    offset = len(MAGIC)
    while (record := read_record(descriptor, offset)) is not None:
        yield record
        offset = record.end


def found_in(folder: Path) -> list[tuple[int, Path]]:
    """Number and path of each segment, oldest first."""
    named = [(_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    return sorted((int(match[1]), entry) for match, entry in named if match)


def name_of(number: int) -> str:
    """File name of a segment."""
    return f"{number:010d}.seg"


def flush(path: Path) -> None:
    """Wait until the device has what was written to ``path``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recover(number: int, path: Path, wall: float, monotonic: float) -> tuple[Segment | None, int]:
    """What an earlier run left in ``path``, and how many places in it are damaged.

    A file without a record is removed. ``wall`` and ``monotonic`` are the time now on both clocks:
    the records say by the wall's how old they are; where that went back they count as new.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        if os.pread(descriptor, len(MAGIC), 0) != MAGIC and length > len(MAGIC):
            log.warning("%s is no outbox segment of this version; left alone", path)
            return None, 0
        segment = Segment(number, path)
        first_ms = newest_ms = 0
        for record in records(descriptor):
            first_ms = first_ms or record.accepted_ms
            newest_ms = record.accepted_ms
            segment.records += 1
            segment.size = record.end
    finally:
        os.close(descriptor)
    torn = length > segment.size
    if torn:
        log.warning("%s: its last %d bytes are damaged, left out", path, length - segment.size)
    if not segment.records:
        path.unlink()
        return None, int(torn)
    segment.first_at = monotonic - max(0.0, wall - first_ms / 1000)
    segment.newest_at = monotonic - max(0.0, wall - newest_ms / 1000)
    segment.synced = segment.records
    return segment, int(torn)
