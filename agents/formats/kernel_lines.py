"""Faults of cards in lines of the kernel's log.

Known are the lines of NVIDIA's driver (NVRM), of the kernel's PCIe error reporting (AER), and of
network and Tenstorrent links over QSFP. The forms of the lines are those of public reports;
what a line says beyond them stays in ``raw``.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

FALLEN_OFF: Final = 79
"""The Xid that stands for "GPU has fallen off the bus" in NVIDIA's catalogue."""

_ADDRESS: Final = r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_XID: Final = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)]*\): (?P<code>\d{{1,6}})(?!\d)(?:, (?P<text>.*))?",
    re.IGNORECASE,
)
_UUID: Final = re.compile(rf"NVRM: GPU at (?:PCI:)?{_ADDRESS}: (?P<uuid>GPU-[0-9a-f-]+)", re.I)
_FALLEN: Final = re.compile(r"fallen off the bus", re.IGNORECASE)
_FALLEN_ADDRESS: Final = re.compile(rf"(?:GPU|PCI:) ?(?:at )?(?:PCI:)?{_ADDRESS}", re.IGNORECASE)
_THE_GPU: Final = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}", re.IGNORECASE)
_AER: Final = re.compile(
    r"AER: (?:Multiple )?(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?) "
    rf"error(?: message)? received(?: from|:) {_ADDRESS}",
    re.IGNORECASE,
)
_BUS_ERROR: Final = re.compile(
    rf"{_ADDRESS}: (?:AER: )?PCIe Bus Error: "
    r"severity=(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)",
    re.IGNORECASE,
)
_QSFP: Final = re.compile(
    r"\bQSFP(?:-?DD|28|56|112)?\b.*?\b(?:link )?(?P<what>reset\w*|retrain\w*|down|lost|fail\w*"
    r"|fault|unplugged|flap\w*)\b",
    re.IGNORECASE,
)
_MODULE: Final = re.compile(
    r"Port module event.*?Cable (?P<what>error|unplugged|plugged with error)", re.IGNORECASE
)
_LEADING: Final = re.compile(rf"\b{_ADDRESS}", re.IGNORECASE)

_SECONDS: Final = re.compile(
    r"^(?:kern\s*:\w+\s*:\s*)?\[\s*(?P<seconds>\d+\.\d+)\]\s?(?P<text>.*)$"
)
_DATE: Final = re.compile(
    r"^\[(?P<date>\w{3} \w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\]\s?(?P<text>.*)$"
)
_ISO: Final = re.compile(
    r"^(?P<date>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+(?P<text>.*)$"
)
_SYSLOG: Final = re.compile(r"^(?P<date>\w{3}\s+\d{1,2} \d\d:\d\d:\d\d) (?P<text>\S+ .*)$")
_RECORD: Final = re.compile(
    r"^(?P<level>\d{1,6}),(?P<seq>\d{1,18}),(?P<usec>\d{1,18}),[^;]*;(?P<text>.*)$", re.S
)
_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Fault:
    """One line that tells of a fault. ``code`` is the Xid; ``kind`` tells faults apart."""

    kind: str
    message: str
    raw: str
    code: int | None = None
    pci_address: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One record of ``/dev/kmsg``: its number, its time in seconds since boot, its lines."""

    seq: int
    seconds: float
    text: str


class FaultReader:
    """Finds the faults in lines given in order; remembers what a line says of the next ones.

    ``uuids`` is (PCI address → UUID) as NVIDIA's driver logs it.
    """

    def __init__(self) -> None:
        self.uuids: dict[str, str] = {}
        self._named: str | None = None
        self._named_lines = 0

    def read(self, line: str) -> Fault | None:
        """The fault that ``line`` (without its time) tells of, if any."""
        if (found := _UUID.search(line)) is not None:
            self.uuids[found["address"].lower()] = found["uuid"]
            return None
        if (found := _XID.search(line)) is not None:
            code = int(found["code"])
            text = (found["text"] or "").strip()
            kind = "fallen off" if code == FALLEN_OFF else f"xid {code}"
            return Fault(kind, f"Xid {code}: {text}"[:300], line, code, found["address"].lower())
        return self._fallen(line) or _of_bus(line) or _of_link(line)

    def _fallen(self, line: str) -> Fault | None:
        # Newer drivers break one sentence into three lines, the first of which has the address.
        if (found := _THE_GPU.search(line)) is not None:
            self._named, self._named_lines = found["address"].lower(), 4
        self._named_lines -= 1
        if self._named_lines <= 0:
            self._named = None
        if _FALLEN.search(line) is None:
            return None
        here = _FALLEN_ADDRESS.search(line) or _LEADING.search(line)
        address = here["address"].lower() if here is not None else self._named
        self._named = None
        message = "the GPU has fallen off the bus, said without an Xid (which would be 79)"
        return Fault("fallen off", message, line, FALLEN_OFF, address)


def _of_bus(line: str) -> Fault | None:
    found = _AER.search(line) or _BUS_ERROR.search(line)
    if found is None:
        return None
    severity = found["severity"].lower().replace("able", "ed")
    address = found["address"].lower()
    message = f"PCIe error of {address}: {severity}"
    return Fault(f"aer {severity}", message, line, None, address)


def _of_link(line: str) -> Fault | None:
    found = _QSFP.search(line) or _MODULE.search(line)
    if found is None:
        return None
    here = _LEADING.search(line)
    address = here["address"].lower() if here is not None else None
    where = "" if address is None else f" of {address}"
    return Fault("qsfp", f"QSFP link{where}: {found['what'].lower()}", line, None, address)


def kmsg_record(data: bytes) -> Record | None:
    """One read of ``/dev/kmsg`` as a record; None where it is none.

    What a program wrote there has no text: it may claim anything. The kernel writes a line break
    or other control character within a record in hexadecimal.
    """
    head, _, _ = data.partition(b"\n")  # what follows are the device's properties
    unescaped = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]), head)
    found = _RECORD.match(unescaped.decode("utf-8", errors="replace"))
    if found is None:
        return None
    # Level and facility are one number. Anybody may write here; facility 0 is the kernel's own.
    text = found["text"] if int(found["level"]) >> 3 == 0 else ""
    return Record(int(found["seq"]), int(found["usec"]) / 1e6, text)


def log_line(line: str) -> tuple[float | None, bool, str]:
    """(seconds, whether they are Unix time, text) of a line of dmesg, journalctl or syslog.

    Times without a zone are the machine's own, as dmesg -T and journalctl write them.
    """
    line = line.rstrip("\r\n")
    if (record := kmsg_record(line.encode())) is not None:
        return record.seconds, False, record.text
    if (found := _SECONDS.match(line)) is not None:
        return float(found["seconds"]), False, found["text"]
    if (found := _DATE.match(line)) is not None:
        return _unix(found["date"], "%a %b %d %H:%M:%S %Y"), True, found["text"]
    if (found := _ISO.match(line)) is not None:
        return _iso(found["date"].replace(",", ".")), True, found["text"]
    if (found := _SYSLOG.match(line)) is not None:
        # No year in it: good for the time between two lines, not for when it was.
        return _unix(f"2000 {found['date']}", "%Y %b %d %H:%M:%S"), False, found["text"]
    return None, False, line


def _unix(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(" ".join(text.split()), form).astimezone().timestamp()
    except ValueError:
        return None


def _iso(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None
