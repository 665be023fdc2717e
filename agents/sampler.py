"""Readings of a rig's sources → one telemetry message and the events of a tick.

Takes time as a value and touches the world only through its sources.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agents.changes import DeviceChanges
from agents.guarded import GuardedSource
from agents.merge import attach, merge, pci_slot
from agents.messages import Envelope, in_order
from agents.plausible import impossible
from agents.rate import TemperatureRate
from agents.source import (
    DeviceReading,
    EventSource,
    Instant,
    NoSample,
    NotHere,
    ReadFailed,
    ReadLate,
    Source,
)
from contract.message import Message
from contract.signals import SIGNAL_NAMES

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

    ``reads`` counts (source, ``data`` | ``not here`` | ``failed`` | ``late`` | ``no sample``);
    ``read_seconds`` holds how long each source's last read took; ``nulled`` counts (source,
    sensor, reason) of values that were no measurement and went out as null; ``details`` has each
    device's latest numbers that are not in the message (name with unit → number).
    """

    def __init__(
        self,
        envelope: Envelope,
        sources: Sequence[Source],
        interval_seconds: float,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._envelope = envelope
        self._interval = interval_seconds
        self._sources = [_SourceState(source) for source in sources]
        self._devices: dict[str, _Device] = {}
        self._stopwatch = stopwatch
        self._unattached: set[str] = set()
        self._collected: dict[tuple[str, str, str], int] = {}
        self.reads: Counter[tuple[str, str]] = Counter()
        self.read_seconds: dict[str, float] = {}
        self.nulled: Counter[tuple[str, str, str]] = Counter()
        self.details: dict[str, dict[str, float]] = {}
        self._said: set[tuple[str, str, str]] = set()

    @property
    def pending(self) -> bool:
        """Whether a source with a slow tool waits for its first answer."""
        return any(getattr(_inner(state.source), "pending", False) for state in self._sources)

    @property
    def late(self) -> int:
        """How many reads were late so far, over all sources."""
        return sum(count for (_, outcome), count in self.reads.items() if outcome == "late")

    @property
    def troubles(self) -> dict[str, str]:
        """What keeps sources from giving data now, by source."""
        return {s.source.name: s.trouble for s in self._sources if s.trouble is not None}

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
                self._null_impossible(source_state.source.name, reading, notices)
                if "device" in reading:
                    merge(merged, reading)
                else:
                    of_rig.append(reading)
            self._collect_nulled(source_state.source)
        notices += self._attach(merged, of_rig)
        self.details = {
            name: {key: value for key, value in details.items() if value is not None}
            for name, reading in merged.items()
            if (details := reading.pop("details", None))
        }
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
        began = self._stopwatch()
        try:
            readings = source.read(now)
        except NotHere as error:
            outcome, trouble, state = "not here", f"is not here: {error}", "unknown"
        except ReadLate as error:
            outcome, trouble = "late", f"does not answer: {error}"
            # Of several devices nobody knows which one hangs.
            state = "unresponsive" if len(source_state.devices) == 1 else "unknown"
        except ReadFailed as error:
            outcome, trouble, state = "failed", f"failed: {error}", "unknown"
        else:
            self.reads[source.name, "data"] += 1
            if source_state.trouble is not None:
                notices.append(f"source {source.name} gives data again")
                source_state.trouble = None
            return self._with_vanished(source_state, readings)
        finally:
            self.read_seconds[source.name] = self._stopwatch() - began
        self.reads[source.name, outcome] += 1
        # How late an answer is changes at every tick, and is no news.
        said = outcome if outcome == "late" else trouble
        if source_state.trouble != said:
            notices.append(
                f"source {source.name} {trouble} (asked again every {self._interval:g} s)"
            )
            source_state.trouble = said
        # A broken observer says nothing about the cards.
        return list(self._placeholders(source_state.devices, state))

    def _with_vanished(
        self, source_state: _SourceState, readings: list[DeviceReading]
    ) -> list[DeviceReading]:
        present = [str(reading["device"]) for reading in readings if "device" in reading]
        if source_state.source.enumerates:
            # A vanished device stays in the list: it is reported as lost from now on.
            gone = [name for name in source_state.devices if name not in present]
            readings = readings + list(self._placeholders(gone, "lost"))
            present += gone
        source_state.devices = present
        return readings

    def _null_impossible(self, source: str, reading: DeviceReading, notices: list[str]) -> None:
        """Make null what is no measurement, count it, and say it once a device and sensor."""
        found: dict[str, tuple[str, object]] = {
            sensor: (reason, None) for sensor, reason in reading.pop("nulled", {}).items()
        }
        details = dict(reading.get("details", {}))
        for values, sensors in ((reading, SIGNAL_NAMES), (details, list(details))):
            for sensor in sensors:
                value = values.get(sensor)
                reason = impossible(sensor, value)
                if reason is not None:
                    values[sensor] = None
                    found[sensor] = reason, value
        if details:
            reading["details"] = details
        for sensor, (reason, value) in found.items():
            self.nulled[source, sensor, reason] += 1
            key = source, str(reading.get("device", "the rig")), sensor
            if key not in self._said:
                self._said.add(key)
                what = reason if value is None else f"{reason}, {value!r:.40}"
                notices.append(
                    f"source {source}: {sensor} of {key[1]} is no measurement ({what}): "
                    "sent as null and counted from now on"
                )

    def _collect_nulled(self, source: Source) -> None:
        """Take over what a source counted by itself, of values that never reached a reading."""
        counted: dict[tuple[str, str], int] = getattr(_inner(source), "nulled", {})
        for (sensor, reason), number in list(counted.items()):
            before = self._collected.get((source.name, sensor, reason), 0)
            self.nulled[source.name, sensor, reason] += number - before
            self._collected[source.name, sensor, reason] = number

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
            source = _inner(source_state.source)
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


def _inner(source: Source) -> Source:
    """The source itself, where it stands behind a deadline."""
    return source.source if isinstance(source, GuardedSource) else source
