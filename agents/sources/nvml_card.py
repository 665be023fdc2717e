"""One NVIDIA card as NVML answers for it. All of it may block, and runs in the card's lane."""

from dataclasses import dataclass, field
from typing import Any, Final

from agents.counters import WrappingCounter
from agents.plausible import SENTINEL, is_sentinel
from agents.source import DeviceReading
from agents.sources.nvml_fields import (
    DETAILS,
    NO_MEASUREMENT,
    SENSORS,
    SLOW_DETAILS,
    Codes,
    Read,
    ReadDetails,
)
from agents.sources.nvml_proxies import RIPPLE_METHOD, VIBRATION_METHOD, FanJitter, ripple_volts

SLOW_SECONDS: Final = 60.0
_VALUE_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of a sample's value by NVML_VALUE_TYPE_…"""


@dataclass(slots=True)
class Capabilities:
    """What a card is still asked for: each field until it says that it does not have it."""

    sensors: dict[str, Read] = field(default_factory=lambda: dict(SENSORS))
    details: dict[str, ReadDetails] = field(default_factory=lambda: dict(DETAILS))
    slow: dict[str, ReadDetails] = field(default_factory=lambda: dict(SLOW_DETAILS))
    power_samples: bool = True


@dataclass(slots=True)
class Card:
    """A card by its UUID, whatever index it has today. ``handle`` is None while it is lost."""

    identity: DeviceReading
    handle: Any = None
    can: Capabilities = field(default_factory=Capabilities)
    _slow_at: float | None = None
    _slow: dict[str, float] = field(default_factory=dict)
    _samples_until: int = 0  # µs, the driver's clock
    _jitter: FanJitter = field(default_factory=FanJitter)
    _replays: WrappingCounter = field(default_factory=WrappingCounter)

    @property
    def name(self) -> str:
        return str(self.identity["device"])

    def driver_was_loaded(self) -> None:
        """Forget what was true of the driver before."""
        self.can = Capabilities()
        self._slow_at, self._samples_until = None, 0

    def read(self, nvml: Any, codes: Codes, handle: Any, monotonic: float) -> DeviceReading:
        """Everything the card has, or its state when it has nothing to give.

        Raises:
            nvml.NVMLError: only for what concerns the whole driver (``codes.no_driver``).
        """
        reading: DeviceReading = {**self.identity, "state": "ok"}
        refusals: dict[str, int] = {}
        for name, read in list(self.can.sensors.items()):
            try:
                reading[name] = read(nvml, handle)
            except nvml.NVMLError as error:
                if error.value in codes.lost:
                    return self.lost()
                if error.value in codes.no_driver:
                    raise
                reading[name] = None
                refusals[name] = error.value
        if refusals and len(refusals) == len(self.can.sensors):
            said = set(refusals.values())
            if codes.unknown in said and said <= codes.vague | codes.unsupported:
                return self.lost()
            if said == {codes.timeout}:
                return {**self.identity, "state": "unresponsive"}
            if said <= codes.vague:
                return self.lost()
        for name, code in refusals.items():
            if code in codes.unsupported:
                self.can.sensors.pop(name, None)
        self._null_garbage(reading)
        reading["details"] = self._details(nvml, codes, handle, monotonic)
        self._proxies(reading, nvml, codes, handle)
        return reading

    def lost(self) -> DeviceReading:
        """What is said of a card that is gone."""
        return {**self.identity, "state": "lost"}

    def _null_garbage(self, reading: DeviceReading) -> None:
        nulled = {n: SENTINEL for n, garbage in NO_MEASUREMENT.items() if reading.get(n) == garbage}
        if nulled:
            reading.update(dict.fromkeys(nulled))
            reading["nulled"] = nulled

    def _details(self, nvml: Any, codes: Codes, handle: Any, monotonic: float) -> dict[str, float]:
        found = _ask(self.can.details, nvml, codes, handle)
        if self._slow_at is None or monotonic - self._slow_at >= SLOW_SECONDS:
            self._slow_at = monotonic
            self._slow = _ask(self.can.slow, nvml, codes, handle)
        raw = found.get("pcie_replay_total")
        if raw is not None and not is_sentinel(raw):
            found["pcie_replay_total"] = self._replays.update(int(raw))
        return found | self._slow

    def _proxies(self, reading: DeviceReading, nvml: Any, codes: Codes, handle: Any) -> None:
        stand_ins = {
            "vrm_ripple_volts": (RIPPLE_METHOD, self._ripple_volts(nvml, codes, handle)),
            "fan_vibration_g": (
                VIBRATION_METHOD,
                self._jitter.update(reading.get("fan_speed_rpm"), reading.get("fan_duty_ratio")),
            ),
        }
        methods = {}
        for sensor, (method, value) in stand_ins.items():
            if value is not None:
                reading[sensor] = value
                methods[sensor] = method
        if methods:
            reading["methods"] = methods

    def _ripple_volts(self, nvml: Any, codes: Codes, handle: Any) -> float | None:
        if not self.can.power_samples:
            return None
        try:
            kind, samples = nvml.nvmlDeviceGetSamples(
                handle, nvml.NVML_TOTAL_POWER_SAMPLES, self._samples_until
            )
        except nvml.NVMLError as error:
            self.can.power_samples = error.value not in codes.unsupported
            return None
        if not 0 <= kind < len(_VALUE_MEMBERS):
            return None
        member = _VALUE_MEMBERS[kind]
        # Some drivers give their whole buffer whatever they are asked for.
        fresh = sorted(
            (int(sample.timeStamp), float(getattr(sample.sampleValue, member)))
            for sample in samples
            if sample.timeStamp > self._samples_until
        )
        if not fresh:
            return None
        self._samples_until = fresh[-1][0]
        return ripple_volts([mw / 1000 for _, mw in fresh if mw > 0 and not is_sentinel(mw)])


def _ask(reads: dict[str, ReadDetails], nvml: Any, codes: Codes, handle: Any) -> dict[str, float]:
    """All details that ``reads`` gives; those that the card does not have are taken out of it."""
    found: dict[str, float] = {}
    for name, read in list(reads.items()):
        try:
            found |= read(nvml, handle)
        except nvml.NVMLError as error:
            if error.value in codes.no_driver:
                raise
            if error.value in codes.unsupported:
                reads.pop(name, None)
    return found
