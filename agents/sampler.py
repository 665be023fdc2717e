"""Readings of a rig's sources → one telemetry message and the events of a tick.

Takes time as a value and touches the world only through its sources.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agents.changes import DeviceChanges
from agents.messages import Envelope, in_order
from agents.plausible import impossible
from agents.rate import TemperatureRate
from agents.source import DeviceReading, Instant, NoSample, NotHere, ReadFailed, ReadLate, Source
from contract.message import Message
from contract.signals import SIGNAL_NAMES

_IDENTITY = ("device", "index", "vendor", "model", "serial", "driver")


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
        self.reads: Counter[tuple[str, str]] = Counter()
        self.read_seconds: dict[str, float] = {}
        self.nulled: Counter[tuple[str, str, str]] = Counter()
        self.details: dict[str, dict[str, float]] = {}
        self._said: set[tuple[str, str, str]] = set()

    @property
    def late(self) -> int:
        """How many reads were late so far, over all sources."""
        return sum(count for (_, outcome), count in self.reads.items() if outcome == "late")

    def tick(self, now: Instant) -> Tick:
        """Sample at ``now``."""
        notices: list[str] = []
        merged: dict[str, DeviceReading] = {}
        for source_state in self._sources:
            try:
                readings = self._read(source_state, now, notices)
            except NoSample:
                self.reads[source_state.source.name, "no sample"] += 1
                return Tick(None, [], notices)
            for reading in readings:
                self._null_impossible(source_state.source.name, reading, notices)
                _merge(merged, reading)
        self.details = {
            name: {key: value for key, value in details.items() if value is not None}
            for name, reading in merged.items()
            if (details := reading.pop("details", None))
        }
        events: list[Message] = []
        for reading in merged.values():
            events += self._remember(reading, now)
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
        present = [str(reading["device"]) for reading in readings]
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
            key = source, str(reading["device"]), sensor
            if key not in self._said:
                self._said.add(key)
                what = reason if value is None else f"{reason}, {value!r:.40}"
                notices.append(
                    f"source {source}: {sensor} of {key[1]} is no measurement ({what}): "
                    "sent as null and counted from now on"
                )

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


def _merge(into: dict[str, DeviceReading], reading: DeviceReading) -> None:
    """Of two values the first counts, but a sensor's before one that stands in for a sensor."""
    known = into.setdefault(str(reading["device"]), reading)
    if known is reading:
        return
    methods, known_methods = reading.get("methods", {}), dict(known.get("methods", {}))
    for key, value in reading.items():
        if key == "details":
            known["details"] = {**value, **known.get("details", {})}
        elif key == "state":
            if known.get("state", "unknown") == "unknown":  # who could look knows better
                known["state"] = value
        elif key != "methods" and value is not None:
            stands_in = key in known_methods and key not in methods
            if known.get(key) is None or stands_in:
                known[key] = value
                known_methods.pop(key, None)
                if key in methods:
                    known_methods[key] = methods[key]
    if known_methods or "methods" in known:
        known["methods"] = known_methods
