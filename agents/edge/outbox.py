"""Messages on disk until the broker has them: bounded in size and age, oldest dropped.

Everything is written before it is sent, so that a killed agent loses nothing it had accepted.
While the broker answers, a record lives for milliseconds: when all are delivered the file is cut
back to nothing, mostly before the system has written it out. Losing power may cost the last
``SYNC_SECONDS`` of an outage.
"""

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from agents.edge import segments
from agents.edge.segments import MAGIC, Segment
from contract.errors import ConfigError

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 256 * 1024
"""Dropping and sending again after a crash go by whole segments (about forty messages)."""
SYNC_SECONDS: Final = 5.0
"""A record that is still there after this long is flushed to the device."""
RETRY_SECONDS: Final = 5.0
"""How often a disk that refused is asked again."""


class Ticket(NamedTuple):
    """Where a message lies."""

    segment: int
    place: int
    offset: int


class Stored(NamedTuple):
    """A message given out by the backlog."""

    topic: str
    payload: bytes
    ticket: Ticket


class Outbox:
    """A folder of segments. Safe for several threads; no method waits for the device.

    ``dropped`` counts lost messages by reason (``size``, ``age``, ``damaged``), ``disk_errors``
    what the disk refused.

    Raises:
        ConfigError: another agent uses the folder.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        max_age_seconds: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_age = max_age_seconds
        self._segment_bytes = max(1, min(SEGMENT_BYTES, max_bytes // 8))
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._segments: dict[int, Segment] = {}
        self._next_number = 1
        self._active: Segment | None = None
        self._descriptor = -1
        self._reader = -1
        self._reading = -1
        self._lock_file = -1
        self._retry_at = float("-inf")
        self._ready = False
        self._said_full = False
        self.trouble: str | None = None
        self.dropped: Counter[str] = Counter()
        self.disk_errors = 0
        try:
            self._prepare()
        except BlockingIOError as error:
            raise ConfigError(
                f"state folder {folder.parent} is in use by another agent; "
                "give each agent its own with --state"
            ) from error
        except OSError as error:
            self._refused(error)

    def append(self, topic: str, payload: bytes) -> Ticket | None:
        """Store a message that is about to be sent; None where the disk refuses."""
        return self._append(topic, payload, take=True)

    def store(self, topic: str, payload: bytes) -> bool:
        """Store a message for the backlog; False where the disk refuses."""
        return self._append(topic, payload, take=False) is not None

    def next(self) -> Stored | None:
        """The oldest message that is not on its way yet, which it is from now on."""
        with self._lock:
            self._drop_old()
            for segment in list(self._segments.values()):
                while segment.read < segment.records > len(segment.taken):
                    found = self._read(segment)
                    if found is not None:
                        return found
        return None

    def give_back(self, ticket: Ticket) -> None:
        """A message was not sent after all: the backlog has it again."""
        with self._lock:
            segment = self._segments.get(ticket.segment)
            if segment is None:
                return
            segment.taken.discard(ticket.place)
            if ticket.place < segment.read:
                segment.read, segment.read_offset = ticket.place, ticket.offset

    def done(self, ticket: Ticket) -> None:
        """The broker has the message."""
        with self._lock:
            segment = self._segments.get(ticket.segment)
            if segment is None:
                return
            segment.done += 1
            if not segment.pending:
                self._finished(segment)

    def sync(self) -> None:
        """Flush to the device what has been waiting for ``SYNC_SECONDS``; may wait for it."""
        due = self._monotonic() - SYNC_SECONDS
        with self._lock:
            waiting = [
                (segment, segment.path, segment.records)
                for segment in self._segments.values()
                if segment.records > segment.synced and segment.first_at <= due
            ]
        for segment, path, count in waiting:
            try:
                segments.flush(path)
            except FileNotFoundError:
                continue  # delivered meanwhile
            except OSError as error:
                self._refused(error)
            segment.synced = max(segment.synced, count)

    def close(self) -> None:
        """Let go of the files; what is not delivered stays for the next start."""
        with self._lock:
            self._ready = False
            for descriptor in (self._descriptor, self._reader, self._lock_file):
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptor = self._reader = self._reading = self._lock_file = -1

    def __len__(self) -> int:
        """Messages that the broker does not have yet."""
        with self._lock:
            return sum(segment.pending for segment in self._segments.values())

    @property
    def backlog(self) -> int:
        """Messages that wait and are not on their way."""
        with self._lock:
            return sum(s.records - len(s.taken) for s in self._segments.values())

    @property
    def size_bytes(self) -> int:
        """What the segments take on disk."""
        with self._lock:
            return sum(segment.size for segment in self._segments.values())

    def oldest_age_seconds(self) -> float:
        """Age of the oldest message that is kept, to within a segment; 0 when there is none."""
        with self._lock:
            for segment in self._segments.values():
                if segment.pending:
                    return max(0.0, self._monotonic() - segment.first_at)
        return 0.0

    def _prepare(self) -> None:
        """Take the folder and find what an earlier run left."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._lock_file < 0:
            descriptor = os.open(
                self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
            self._lock_file = descriptor
        for number, path in segments.found_in(self._folder):
            self._next_number = max(self._next_number, number + 1)
            if number in self._segments:
                continue
            segment, torn = segments.recover(number, path, self._wall(), self._monotonic())
            self.dropped["damaged"] += torn
            if segment is not None:
                self._segments[number] = segment
        self._ready = True

    def _append(self, topic: str, payload: bytes, take: bool) -> Ticket | None:
        record = segments.pack(topic, payload, int(self._wall() * 1000))
        now = self._monotonic()
        with self._lock:
            if self.trouble is not None and now < self._retry_at:
                return None
            if len(record) > segments.MAX_RECORD_BYTES:
                return None
            try:
                segment = self._writable(len(record), now)
                written = os.write(self._descriptor, record)
                if written != len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._abandon()
                self._refused(error)
                return None
            if self.trouble is not None:
                log.warning("outbox %s: works again", self._folder)
                self.trouble = None
            ticket = Ticket(segment.number, segment.records, segment.size)
            if not segment.records:
                segment.first_at = now
            segment.newest_at = now
            segment.records += 1
            segment.size += len(record)
            if take:
                segment.taken.add(ticket.place)
            self._drop_old()
            return ticket

    def _writable(self, more: int, now: float) -> Segment:
        """The segment to append to, with room for ``more`` bytes."""
        if not self._ready:
            self._prepare()
        active = self._active
        if active is not None:
            full = active.size + more > self._segment_bytes
            long = now - active.first_at > self._max_age / 16
            if not active.records or not (full or long):
                return active
            os.close(self._descriptor)
            self._active, self._descriptor = None, -1
        number = self._next_number
        path = self._folder / segments.name_of(number)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._next_number += 1
        active = Segment(number, path)
        self._segments[number] = self._active = active
        if os.write(self._descriptor, MAGIC) != len(MAGIC):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return active

    def _abandon(self) -> None:
        """Stop writing to a file that refused: cut off a torn record and take another."""
        active, self._active = self._active, None
        if active is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, active.size)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1
        if not active.pending:
            self._remove(active)

    def _read(self, segment: Segment) -> Stored | None:
        """Step over the next record of ``segment``; None where it is not for the backlog."""
        index, offset = segment.read, segment.read_offset
        try:
            if self._reading != segment.number:
                self._stop_reading()
                self._reader = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
                self._reading = segment.number
            record = segments.read_record(self._reader, offset)
        except OSError as error:
            self._refused(error)
            record = None
        if record is None:
            lost = segment.records - index - sum(1 for taken in segment.taken if taken >= index)
            log.error("outbox %s: %d messages cannot be read and are lost", segment.path, lost)
            self.dropped["damaged"] += lost
            segment.taken.update(range(index, segment.records))
            segment.done += lost
            segment.read = segment.records
            if not segment.pending:
                self._finished(segment)
            return None
        segment.read, segment.read_offset = index + 1, record.end
        if index in segment.taken:
            return None
        segment.taken.add(index)
        return Stored(record.topic, record.payload, Ticket(segment.number, index, offset))

    def _stop_reading(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
        self._reader = self._reading = -1

    def _finished(self, segment: Segment) -> None:
        """Everything in it is delivered."""
        if segment is not self._active:
            self._remove(segment)
            return
        try:
            os.ftruncate(self._descriptor, len(MAGIC))
        except OSError as error:
            self._refused(error)
            self._abandon()
            return
        segment.clear()
        self._said_full = False

    def _remove(self, segment: Segment) -> None:
        self._segments.pop(segment.number, None)
        if self._reading == segment.number:
            self._stop_reading()
        if segment is self._active:
            os.close(self._descriptor)
            self._active, self._descriptor = None, -1
        try:
            segment.path.unlink()
        except OSError as error:
            self._refused(error)

    def _drop_old(self) -> None:
        """Keep within the limits of size and age."""
        too_old = self._monotonic() - self._max_age
        size = self.size_bytes
        for segment in list(self._segments.values()):
            if segment.records and segment.newest_at < too_old:
                reason = "age"
            elif size > self._max_bytes and len(self._segments) > 1:
                reason = "size"
            else:
                break
            size -= segment.size
            waiting = segment.records - len(segment.taken)
            self.dropped[reason] += waiting
            if waiting and not self._said_full:
                log.warning("outbox %s: limit of %s reached; the oldest go", self._folder, reason)
                self._said_full = True
            self._remove(segment)

    def _refused(self, error: OSError) -> None:
        """Count what the disk refused, and say it once until it works again."""
        with self._lock:
            self.disk_errors += 1
            self._retry_at = self._monotonic() + RETRY_SECONDS
            if self.trouble is None:
                log.error(
                    "outbox %s: %s; messages are kept in memory only until it works again",
                    self._folder,
                    error.strerror or error,
                )
            self.trouble = error.strerror or str(error)
