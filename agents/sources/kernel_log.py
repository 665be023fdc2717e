"""The source ``kernel_log``: faults that the kernel writes of cards, as events.

It gives no readings. Of ``/dev/kmsg`` each read is one record; what was in it when the agent
started is read for the cards' names only, and never reported. The log is a ring: where the kernel
was faster than the agent the records in between are counted as lost.

Event types are those of the contract; what has none of its own (PCIe errors, QSFP links) goes as
``xid`` without a code.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agents.formats.kernel_lines import Fault, FaultReader, kmsg_record, log_line
from agents.merge import pci_slot
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed, SourceEvent
from agents.sysfs import PCI_ADDRESS, listdir
from contract.errors import ConfigError

RECORD_BYTES: Final = 8192
"""The kernel gives whole records only; PRINTK_MESSAGE_MAX is 2,048, with properties under this."""
MAX_RECORDS: Final = 20_000
"""Records taken in one read; a flood waits for the next tick (or is overrun, which is counted)."""
MAX_PENDING: Final = 200
"""Events kept for a tick; a rig in such a state has said enough."""
MAX_KNOWN: Final = 1000


class KernelLogSource:
    """Follows the kernel's log, or reads the file that ``input`` names, once.

    ``overruns`` counts records that the kernel overwrote before they were read, ``dropped``
    events beyond what a tick holds, ``repeats`` lines that told again what was just reported.
    """

    name = "kernel_log"
    enumerates = False

    def __init__(
        self, settings: AgentSettings, read: Callable[[int, int], bytes] = os.read
    ) -> None:
        self._path = settings.kernel_log.path
        self._input = settings.input
        if self._input is not None and not self._input.is_file():
            raise ConfigError(f"--input {self._input}: there is no such file")
        self._input_read = False
        self._os_read = read
        self._fd: int | None = None
        self._next_seq: int | None = None
        self._lines = FaultReader()
        # A recording is of another machine: its ports are not this one's.
        self._root = settings.kernel_log.root if self._input is None else None
        self._repeat = settings.kernel_log.repeat_seconds
        self._reported: dict[tuple[str, str | None], tuple[float, int]] = {}
        self._events: list[SourceEvent] = []
        self.nulled: Counter[tuple[str, str]] = Counter()
        self.overruns = self.dropped = self.repeats = 0

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._input is not None:
            if not self._input_read:
                self._read_file(self._input)
                self._input_read = True
            return []
        if self._fd is None:
            self._open()
            self._drain(None)  # from before this agent: nothing of it is new
            return []
        self._drain(now.monotonic)
        return []

    def events(self, now: Instant) -> list[SourceEvent]:
        found, self._events = self._events, []
        return found

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise NotHere(
                f"{self._path} may not be read: give the agent the group that may, or the "
                f"capability CAP_SYSLOG (docs/sensors.md)"
            ) from error
        except OSError as error:
            raise NotHere(f"{self._path}: {error.strerror}") from error

    def _drain(self, seconds: float | None) -> None:
        assert self._fd is not None
        for _ in range(MAX_RECORDS):
            try:
                data = self._os_read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # Overwritten since: the next read gives the oldest record that is left, and
                    # its number says how many are gone.
                    continue
                if error.errno == errno.EINVAL:
                    continue  # a record longer than it can be
                self.close()
                raise ReadFailed(f"{self._path}: {error.strerror}") from error
            if not data:
                return
            self._take(data, seconds)

    def _take(self, data: bytes, seconds: float | None) -> None:
        record = kmsg_record(data)
        if record is None:
            return
        if self._next_seq is not None and record.seq > self._next_seq:
            self.overruns += record.seq - self._next_seq
        self._next_seq = record.seq + 1
        for line in record.text.split("\n"):
            fault = self._lines.read(line)
            if fault is not None and seconds is not None:
                self._report(fault, seconds, None)

    def _read_file(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ReadFailed(f"{path}: {error.strerror}") from error
        seconds = 0.0
        for line in text.splitlines():
            at, is_unix, said = log_line(line)
            seconds = seconds if at is None else at  # lines without a time share the last one
            for part in said.split("\n"):
                fault = self._lines.read(part)
                if fault is not None:
                    self._report(fault, seconds, at if is_unix else None)

    def _report(self, fault: Fault, seconds: float, ts: float | None) -> None:
        address = fault.pci_address
        if address is not None and fault.kind.startswith("aer") and self._root is not None:
            address = _behind(self._root, address)
        slot = None if address is None else pci_slot(address)
        key = fault.kind, slot
        repeats = 0
        if key in self._reported:
            reported, repeats = self._reported[key]
            if 0 <= seconds - reported < self._repeat:
                self._reported[key] = reported, repeats + 1
                self.repeats += 1
                return
        elif len(self._reported) >= MAX_KNOWN:
            del self._reported[next(iter(self._reported))]
        self._reported[key] = seconds, 0
        if len(self._events) >= MAX_PENDING:
            self.dropped += 1
            return
        message = fault.message
        if repeats:
            message += f" (and {repeats} more lines of it since the last event)"
        uuid = next((u for a, u in self._lines.uuids.items() if pci_slot(a) == slot), None)
        self._events.append(
            SourceEvent("xid", message, fault.code, fault.raw[:1000], uuid, address, ts)
        )


def _behind(root: Path, address: str) -> str:
    """The device behind the PCIe port at ``address`` where there is one, else ``address``."""
    children = listdir(root / "bus" / "pci" / "devices" / address, "")
    slots = {pci_slot(c.name): c.name for c in children if PCI_ADDRESS.fullmatch(c.name)}
    return next(iter(slots.values())).lower() if len(slots) == 1 else address
