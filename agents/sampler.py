"""Readings of a rig's sources → one telemetry message and the events of a tick.

Takes time as a value and touches the world only through its sources.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agents.changes import DeviceChanges
from agents.merge import attach, merge, pci_slot
from agents.messages import Envelope, in_order
from agents.rate import TemperatureRate
from agents.source import (
    DeviceReading,
    EventSource,
    Instant,
    NoSample,
    NotHere,
    ReadFailed,
    Source,
)
from contract.message import Message

_IDENTITY = ("device", "index", "vendor", "model", "serial", "driver", "pci_address")


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick gave. ``notices`` are lines for the log; each is said once per change.

    ``telemetry`` is None where a source that plays a rig back had no sample (``NoSample``).
    """

    telemetry: Message | None
    events: list[Message]
    notices: list[str]


@dataclass(slots=True)
class _Device:
    rate: TemperatureRate
    changes: DeviceChanges
    identity: DeviceReading


@dataclass(slots=True)
class _SourceState:
    source: Source
    devices: list[str] = field(default_factory=list)
    trouble: str | None = None


class Sampler:
    """Reads every source once a tick and keeps what must be remembered between ticks.

    ``reads`` counts (source, ``data`` | ``not here`` | ``failed`` | ``no sample``).
    """

    def __init__(
        self, envelope: Envelope, sources: Sequence[Source], interval_seconds: float
    ) -> None:
        self._envelope = envelope
        self._interval = interval_seconds
        self._sources = [_SourceState(source) for source in sources]
        self._devices: dict[str, _Device] = {}
        self._unattached: set[str] = set()
        self.reads: Counter[tuple[str, str]] = Counter()

    @property
    def pending(self) -> bool:
        """Whether a source with a slow tool waits for its first answer."""
        return any(getattr(state.source, "pending", False) for state in self._sources)

    def tick(self, now: Instant) -> Tick:
        """Sample at ``now``."""
        notices: list[str] = []
        merged: dict[str, DeviceReading] = {}
        of_rig: list[DeviceReading] = []
        for source_state in self._sources:
            try:
                readings = self._read(source_state, now, notices)
            except NoSample:
                self.reads[source_state.source.name, "no sample"] += 1
                return Tick(None, [], notices)
            for reading in readings:
                if "device" in reading:
                    merge(merged, reading)
                else:
                    of_rig.append(reading)
        notices += self._attach(merged, of_rig)
        events: list[Message] = []
        for reading in merged.values():
            events += self._remember(reading, now)
        events += self._told(now)
        telemetry = self._envelope.telemetry(
            now.ts, self._interval, [in_order(reading) for reading in merged.values()]
        )
        return Tick(telemetry, events, notices)

    def close(self) -> None:
        """Close every source."""
        for source_state in self._sources:
            source_state.source.close()

    def _read(
        self, source_state: _SourceState, now: Instant, notices: list[str]
    ) -> list[DeviceReading]:
        source = source_state.source
        try:
            readings = source.read(now)
        except NotHere as error:
            outcome, trouble = "not here", f"source {source.name} is not here: {error}"
        except ReadFailed as error:
            outcome, trouble = "failed", f"source {source.name} failed: {error}"
        else:
            self.reads[source.name, "data"] += 1
            if source_state.trouble is not None:
                notices.append(f"source {source.name} gives data again")
                source_state.trouble = None
            present = [str(reading["device"]) for reading in readings if "device" in reading]
            if source.enumerates:
                # A vanished device stays in the list: it is reported as lost from now on.
                gone = [name for name in source_state.devices if name not in present]
                readings = readings + list(self._placeholders(gone, "lost"))
                present += gone
            source_state.devices = present
            return readings
        self.reads[source.name, outcome] += 1
        if source_state.trouble != trouble:
            notices.append(f"{trouble} (asked again every {self._interval:g} s)")
            source_state.trouble = trouble
        # The observer is broken, which says nothing about the cards.
        return list(self._placeholders(source_state.devices, "unknown"))

    def _placeholders(self, names: Iterable[str], state: str) -> Iterable[DeviceReading]:
        for name in names:
            yield {**self._devices[name].identity, "state": state}

    def _remember(self, reading: DeviceReading, now: Instant) -> list[Message]:
        name = str(reading["device"])
        reading.setdefault("state", "ok")
        device = self._devices.get(name)
        if device is None:
            identity = {key: reading[key] for key in _IDENTITY if key in reading}
            device = self._devices[name] = _Device(
                TemperatureRate(self._interval), DeviceChanges(), identity
            )
        if reading["state"] == "lost":
            device.rate.forget()
        reading["temperature_rate_celsius_per_second"] = device.rate.update(
            reading.get("temperature_celsius"), now.monotonic
        )
        found = device.changes.observe(reading)
        return [self._envelope.event(now.ts, name, type_, text) for type_, text in found]

    def _attach(
        self, merged: dict[str, DeviceReading], of_rig: list[DeviceReading]
    ) -> Iterable[str]:
        """Give the rig's sensors to its cards; a line for each that found none, once."""
        left = set(attach(merged, of_rig))
        new = sorted(left - self._unattached)
        # While no card answers there is nothing to say about where a sensor belongs.
        if merged or not of_rig:
            self._unattached = left
            return new
        return []

    def _told(self, now: Instant) -> Iterable[Message]:
        """The events that sources were told, with the card that is meant."""
        for source_state in self._sources:
            source = source_state.source
            if not isinstance(source, EventSource):
                continue
            for found in source.events(now):
                device = found.device or self._device_at(found.pci_address)
                ts = now.ts if found.ts is None else found.ts
                yield self._envelope.event(
                    ts, device, found.type, found.message, found.code, found.raw
                )

    def _device_at(self, pci_address: str | None) -> str | None:
        if pci_address is None:
            return None
        slot = pci_slot(pci_address)
        for name, device in self._devices.items():
            address = device.identity.get("pci_address")
            if address is not None and pci_slot(str(address)) == slot:
                return name
        return None
