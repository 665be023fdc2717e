"""One device of Linux' Industrial I/O: its channels, its buffer, single reads.

sysfs gives a channel's ``raw``, ``scale`` and ``offset``: (raw + offset) × scale is in IIO's unit
(m/s² for acceleration, mV for voltage).
"""

import os
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agents.formats.iio_scan import Element, Floats, decode, longest_run, offsets
from agents.source import ReadFailed
from agents.sysfs import follow, read_float, read_int, read_text

_TIMESTAMP: Final = "timestamp"
FIRST_WAIT_SECONDS: Final = 1.0
"""Longest wait for the very first burst; later ones were taken between two ticks."""
DRAIN_BYTES: Final = 2**22
"""Most that is read at once; a buffer that an owner made longer than that stays behind."""
SINGLE_READS_SECONDS: Final = 0.25
"""Longest that single reads may hold up a tick."""


_read = os.read


@dataclass(frozen=True, slots=True)
class Burst:
    """``samples_TX`` in IIO's unit, one column a channel; ``sampling_hertz`` None if not known."""

    samples_TX: Floats
    sampling_hertz: float | None
    single_reads: bool


class IioDevice:
    """Reads bursts of ``channels`` (``accel_x``, ``voltage0``).

    The buffer is filled by the kernel while the agent does something else, and read without
    waiting. Its oldest ``samples`` scans are the burst, for they follow each other; what comes in
    as it is emptied may have a gap before it. Where there is no buffer, or the agent may not turn
    it on, channels are read one at a time (``single_reads`` of them), which is slow, uneven and
    good for a strength only.
    """

    def __init__(
        self,
        folder: Path,
        dev: Path,
        channels: tuple[str, ...],
        samples: int,
        single_reads: int,
        set_hertz: float | None = None,
    ) -> None:
        self.folder = follow(folder)
        self.channels = channels
        self._node = dev / folder.name
        self._samples = samples
        self._single_reads = single_reads
        self._set_hertz = set_hertz
        self._fd: int | None = None
        self._elements: list[Element] = []
        self._enabled_here = False
        self._first = True
        self.without_buffer: str | None = None
        """Why there is no buffer, for a person; None while it works."""

    def read(self) -> Burst | None:
        """The newest burst; None where too little has been sampled yet.

        Raises:
            ReadFailed: the device does not answer any more.
        """
        try:
            if self._fd is None and self.without_buffer is None:
                self._open()
            if self._fd is not None:
                return self._of_buffer()
            return self._of_single_reads()
        except OSError as error:
            self.close()
            raise ReadFailed(f"{self.folder.name}: {error.strerror}") from error

    def close(self) -> None:
        """Stop the buffer if it was started here."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._enabled_here:
            self._enabled_here = False
            try:
                (self.folder / "buffer" / "enable").write_text("0", encoding="ascii")
            except OSError:
                # The device was taken out: there is nothing left to stop.
                return

    def sampling_hertz(self) -> float | None:
        """The rate that the driver states, if any."""
        for path in self._rate_files():
            rate = read_float(path)
            if rate:
                return rate
        return None

    def _rate_files(self) -> list[Path]:
        kinds = [c.rstrip("0123456789").rsplit("_", 1)[0] for c in self.channels]
        own = [f"in_{name}_sampling_frequency" for name in dict.fromkeys((*self.channels, *kinds))]
        return [self.folder / name for name in ("sampling_frequency", *own)]

    def _open(self) -> None:
        scan = self.folder / "scan_elements"
        enable = self.folder / "buffer" / "enable"
        if not scan.is_dir() or not enable.exists():
            self.without_buffer = "it has no buffer"
            return
        try:
            if read_int(enable) != 1:
                for channel in self.channels:
                    (scan / f"in_{channel}_en").write_text("1", encoding="ascii")
                stamp = scan / f"in_{_TIMESTAMP}_en"
                if stamp.exists():
                    stamp.write_text("1", encoding="ascii")
                if self._set_hertz is not None:
                    file = next((f for f in self._rate_files() if f.exists()), None)
                    if file is not None:
                        file.write_text(f"{self._set_hertz:g}", encoding="ascii")
                length = self.folder / "buffer" / "length"
                length.write_text(str(self._samples), encoding="ascii")
                enable.write_text("1", encoding="ascii")
                self._enabled_here = True
            self._elements = self._enabled_elements()
            self._fd = os.open(self._node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            self.close()
            self.without_buffer = f"its buffer cannot be used ({said})"

    def _enabled_elements(self) -> list[Element]:
        scan = self.folder / "scan_elements"
        found = []
        for entry in sorted(scan.iterdir()):
            if not entry.name.endswith("_en") or read_int(entry) != 1:
                continue
            name = entry.name.removesuffix("_en")
            index, type_ = read_int(scan / f"{name}_index"), read_text(scan / f"{name}_type")
            if index is None or type_ is None:
                raise ValueError(f"{name} has no index or type")
            found.append(Element.parse(name.removeprefix("in_"), index, type_))
        missing = set(self.channels) - {element.name for element in found}
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} not in the scan")
        return found

    def _of_buffer(self) -> Burst | None:
        assert self._fd is not None
        _, size = offsets(self._elements)
        rate = self.sampling_hertz()
        data = _read_available(self._fd, DRAIN_BYTES)
        if self._first and len(data) < size * self._samples:
            data += self._wait_for(size * self._samples - len(data))
        self._first = False
        raw = decode(data[: size * self._samples], self._elements)
        run = slice(None)
        if _TIMESTAMP in raw:
            run, measured = longest_run(raw[_TIMESTAMP])
            rate = measured or rate
        columns = [
            self._scaled(channel, raw[channel][run].astype(np.float64)) for channel in self.channels
        ]
        if not columns or len(columns[0]) == 0:
            return None
        return Burst(np.stack(columns, axis=1), rate, single_reads=False)

    def _wait_for(self, missing_bytes: int) -> bytes:
        assert self._fd is not None
        deadline = time.monotonic() + FIRST_WAIT_SECONDS
        data = b""
        while len(data) < missing_bytes and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._fd], [], [], left)
            if not ready:
                break
            got = _read_available(self._fd, missing_bytes - len(data))
            if not got:
                break
            data += got
        return data

    def _of_single_reads(self) -> Burst | None:
        files = [self.folder / f"in_{channel}_raw" for channel in self.channels]
        begun = time.monotonic()
        rows: list[list[float]] = []
        for _ in range(self._single_reads):
            row = [read_float(file) for file in files]
            if any(value is None for value in row):
                return None
            rows.append([float(value) for value in row if value is not None])
            if time.monotonic() - begun > SINGLE_READS_SECONDS:
                break
        raw_TX = np.array(rows, dtype=np.float64).reshape(len(rows), len(files))
        columns = [self._scaled(c, raw_TX[:, i]) for i, c in enumerate(self.channels)]
        return Burst(np.stack(columns, axis=1), None, single_reads=True)

    def _scaled(self, channel: str, raw_T: Floats) -> Floats:
        scale = self._attribute(channel, "scale", 1.0)
        offset = self._attribute(channel, "offset", 0.0)
        return (raw_T + offset) * scale

    def _attribute(self, channel: str, name: str, default: float) -> float:
        kind = channel.rstrip("0123456789").rsplit("_", 1)[0]
        for stem in (channel, kind):  # of this channel, or shared by its kind
            value = read_float(self.folder / f"in_{stem}_{name}")
            if value is not None:
                return value
        return default


def _read_available(fd: int, most: int) -> bytes:
    data = b""
    while len(data) < most:
        try:
            got = _read(fd, most - len(data))
        except BlockingIOError:
            break
        if not got:
            break
        data += got
    return data


def names(folder: Path) -> tuple[str, ...]:
    """What a person may call the device: its name, its label, its folder."""
    real = follow(folder)
    texts: list[Any] = [read_text(real / "name"), read_text(real / "label"), folder.name]
    return tuple(str(text) for text in texts if text)


def channels(folder: Path, kind: str) -> tuple[str, ...]:
    """Channels of a kind that the device can read: ``accel`` or ``voltage``."""
    real = follow(folder)
    try:
        entries = sorted(entry.name for entry in real.iterdir())
    except OSError:
        return ()
    found = [e[3:-4] for e in entries if e.startswith(f"in_{kind}") and e.endswith("_raw")]
    if not found and (real / "scan_elements").is_dir():
        scan = sorted(entry.name for entry in (real / "scan_elements").iterdir())
        found = [e[3:-3] for e in scan if e.startswith(f"in_{kind}") and e.endswith("_en")]
    return tuple(found)
