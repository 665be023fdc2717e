"""The source ``tenstorrent``: Tenstorrent cards, through tt-kmd's sysfs or else ``tt-smi -s``.

sysfs is read at every tick. Where the driver gives no sensors there, ``tt-smi`` runs beside the
samples at a slower cadence, in a child that is killed when it hangs; a tick without a new
snapshot has the cards and no values, as nothing was measured.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from agents.child import SlowTool
from agents.counters import WrappingCounter
from agents.formats import tt_smi, tt_sysfs
from agents.guarded import Lanes, deadline_seconds
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed, ReadLate, SourceEvent
from contract.errors import ConfigError

SPREAD_SAMPLES: Final = 12
"""Reads of the core voltage whose spread stands in for the ripple: a minute at 5 s."""
SPREAD_METHOD: Final = "vcore-sample-spread"
FLIT_BYTES: Final = 32
"""What tt-kmd's PCIe counters count."""
_IDENTITY: Final = ("device", "index", "vendor", "model", "serial", "driver", "pci_address")
_STALL_SECONDS: Final = 2.0
"""The firmware counts ten times a second; a shorter standstill is the reader's haste."""


@dataclass(slots=True)
class _Memory:
    heartbeat: int | None = None
    same: int = 0
    moved: float = 0.0
    trips: WrappingCounter = field(default_factory=WrappingCounter)
    trips_before: int | None = None
    vcore: deque[float] = field(default_factory=lambda: deque(maxlen=SPREAD_SAMPLES))
    words: dict[str, WrappingCounter] = field(default_factory=dict)


_Read = tuple[list[tt_sysfs.SysfsChip], Counter[tuple[str, str]]]


class TenstorrentSource:
    """Reads every Tenstorrent card of the rig.

    Each card is read in a lane of its own: one that hangs is ``unresponsive``, the others have
    their readings. ``nulled`` counts (sensor, reason) of values thrown away.
    """

    name = "tenstorrent"
    enumerates = True

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings.tenstorrent
        self._input = settings.input
        if self._input is not None and not self._input.exists():
            raise ConfigError(f"--input {self._input}: there is no such file or folder")
        self._root = self._settings.root
        if self._input is not None and self._input.is_dir():
            self._root, self._input = self._input, None  # a copy of sysfs
        self._tool = SlowTool(
            self._settings.command, self._settings.every_seconds, self._settings.deadline_seconds
        )
        self._memory: dict[str, _Memory] = {}
        self._last: list[DeviceReading] = []
        self._events: list[SourceEvent] = []
        self.nulled: Counter[tuple[str, str]] = Counter()
        self._lanes: Lanes[_Read] = Lanes(
            "tenstorrent", deadline_seconds(settings.interval_seconds)
        )

    @property
    def pending(self) -> bool:
        return self._tool.pending

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._input is not None:
            try:
                printed = self._input.read_bytes()
            except OSError as error:
                raise ReadFailed(f"{self._input}: {error.strerror}") from error
            # A recording's heartbeat never moves, which says nothing.
            return [chip.reading for chip in tt_smi.parse(printed, self.nulled)]
        folders = tt_sysfs.folders(self._root)
        if any(tt_sysfs.has_sensors(folder) for folder in folders):
            return self._of_sysfs(now)
        return self._of_tool(now, bool(folders))

    def events(self, now: Instant) -> list[SourceEvent]:
        found, self._events = self._events, []
        return found

    def close(self) -> None:
        self._tool.close()

    def _of_sysfs(self, now: Instant) -> list[DeviceReading]:
        readings: list[DeviceReading] = []
        folders = tt_sysfs.folders(self._root)
        calls = {f.name: partial(_read_card, f, index) for index, f in enumerate(folders)}
        for index, outcome in enumerate(self._lanes.run(calls).values()):
            try:
                chips, nulled = outcome.get()
            except ReadLate:
                readings += self._without(index, "unresponsive")
                continue
            except OSError:
                # The kernel says EIO or ENODEV where the card no longer answers it.
                readings += self._without(index, "lost")
                continue
            self.nulled.update(nulled)
            for chip in chips:
                memory = self._memory.setdefault(str(chip.reading["device"]), _Memory())
                self._judge(chip.reading, chip.heartbeat, memory, now)
                if chip.therm_trips is not None:
                    self._count_trips(chip.reading, chip.therm_trips, memory)
                _count_words(chip, memory)
                _spread(chip.reading, memory)
                readings.append(chip.reading)
        self._last = readings
        return readings

    def _of_tool(self, now: Instant, driver: bool) -> list[DeviceReading]:
        try:
            chips = self._tool.read(now.monotonic, lambda text: tt_smi.parse(text, self.nulled))
        except NotHere as error:
            what = "tt-kmd gives no sensors" if driver else "the driver tt-kmd is not loaded"
            raise NotHere(f"{what}, and {error}") from error
        if chips is None:
            # Nothing was measured: the cards that are known, and no values.
            return [_identity(r) | {"state": r["state"]} for r in self._last]
        for chip in chips:
            memory = self._memory.setdefault(str(chip.reading["device"]), _Memory())
            self._judge(chip.reading, chip.heartbeat, memory, now)
        self._last = [chip.reading for chip in chips]
        return self._last

    def _judge(
        self, reading: DeviceReading, heartbeat: int | None, memory: _Memory, now: Instant
    ) -> None:
        """Make a card ``unresponsive`` whose firmware's heartbeat stands still.

        Its sensors are the firmware's, so they are not taken for now's values either.
        """
        if heartbeat is None:
            return
        if heartbeat != memory.heartbeat:
            memory.heartbeat, memory.same, memory.moved = heartbeat, 1, now.monotonic
            return
        memory.same += 1
        long_enough = now.monotonic - memory.moved >= _STALL_SECONDS
        if memory.same >= self._settings.heartbeat_polls and long_enough:
            self.nulled["temperature_celsius", "stale heartbeat"] += 1
            identity = _identity(reading)
            reading.clear()
            reading.update(identity, state="unresponsive")

    def _count_trips(self, reading: DeviceReading, trips: int, memory: _Memory) -> None:
        total = memory.trips.update(trips)
        reading.setdefault("details", {})["therm_trips_total"] = float(total)
        before, memory.trips_before = memory.trips_before, total
        if before is not None and total > before:
            text = f"{total - before} more thermal trips of the card, {trips} in all"
            self._events.append(SourceEvent("xid", text, device=str(reading["device"])))

    def _without(self, index: int, state: str) -> list[DeviceReading]:
        """The chips of a card that does not answer, as they were known."""
        known = [_identity(r) for r in self._last if r.get("index") == index]
        unknown = {"device": f"TT-{index}", "index": index, "vendor": "tenstorrent"}
        return [{**identity, "state": state} for identity in known or [unknown]]


def _read_card(folder: Path, index: int) -> "_Read":
    # Counted apart: a call that was left behind may still be running beside the next one.
    nulled: Counter[tuple[str, str]] = Counter()
    return tt_sysfs.read_card(folder, index, nulled), nulled


def _count_words(chip: tt_sysfs.SysfsChip, memory: _Memory) -> None:
    words = [
        memory.words.setdefault(name, WrappingCounter()).update(value)
        for name, value in chip.counters.items()
    ]
    if words:
        details = chip.reading.setdefault("details", {})
        details["pcie_bytes_total"] = float(FLIT_BYTES * sum(words))


def _spread(reading: DeviceReading, memory: _Memory) -> None:
    volts = reading.get("vrm_voltage_volts")
    if volts is None:
        return
    memory.vcore.append(volts)
    if len(memory.vcore) > 2:
        reading["vrm_ripple_volts"] = round(max(memory.vcore) - min(memory.vcore), 6)
        reading.setdefault("methods", {})["vrm_ripple_volts"] = SPREAD_METHOD


def _identity(reading: DeviceReading) -> DeviceReading:
    return {key: reading[key] for key in _IDENTITY if key in reading}
