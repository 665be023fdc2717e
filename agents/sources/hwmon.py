"""The source ``hwmon``: the rig's monitoring chips (inlet temperature, 12 V rail, fans).

What a channel measures is the board maker's choice, and few boards label it. Unmapped, only labels
that say it are believed: an inlet's temperature and the 12 V rail go to every card, a fan to none.
``[hwmon]`` maps the others (docs/sensors.md).
"""

import fnmatch
import re
from collections import Counter, deque
from typing import Final

from agents.formats.hwmon_channels import Channel, has_chips, of_json, of_sysfs
from agents.nulled import plausible
from agents.sensor_settings import HwmonSensor
from agents.settings import AgentSettings
from agents.source import EVERY_CARD, DeviceReading, Instant, NotHere, ReadFailed
from contract.errors import ConfigError

INLET: Final = re.compile(r"inlet|ambient|intake|front panel|chassis.*(?:air|in\b)", re.IGNORECASE)
RAIL_12V: Final = re.compile(r"(?<![\d.])\+?12(?:\.0+)? ?V", re.IGNORECASE)
RAIL_VOLTS: Final = (9.0, 15.0)
"""A labelled rail outside of this is an input whose divider the driver does not know."""
SPREAD_SAMPLES: Final = 12
SPREAD_METHOD: Final = "hwmon-sample-spread"


class HwmonSource:
    """Reads all chips under ``/sys/class/hwmon``; with ``input`` a copy of /sys, or a file with
    the output of ``sensors -j``.
    """

    name = "hwmon"
    enumerates = False

    def __init__(self, settings: AgentSettings) -> None:
        self._root, self._file = settings.hwmon.root, None
        if settings.input is not None:
            if settings.input.is_file():
                self._file = settings.input
            elif settings.input.is_dir():
                self._root = settings.input
            else:
                raise ConfigError(f"--input {settings.input}: there is no such folder or file")
        self._sensors = settings.hwmon.sensors
        self._node = settings.node if settings.rig_only else None
        self._rails: dict[str, deque[float]] = {}
        self.nulled: Counter[tuple[str, str]] = Counter()

    def read(self, now: Instant) -> list[DeviceReading]:
        channels = self._channels()
        if not channels and self._file is None and not has_chips(self._root):
            raise NotHere(f"no monitoring chip under {self._root}/class/hwmon")
        readings = self._mapped(channels) if self._sensors else self._labelled(channels)
        if self._node is None:
            return readings
        return [self._of_node(channels, readings)]

    def close(self) -> None:
        pass

    def _channels(self) -> list[Channel]:
        if self._file is None:
            return of_sysfs(self._root, self._is_wanted)
        try:
            return of_json(self._file.read_bytes())
        except OSError as error:
            raise ReadFailed(f"{self._file}: {error.strerror}") from error

    def _is_wanted(self, channel: Channel) -> bool:
        if self._node is not None and channel.kind == "fan":
            return True
        if self._sensors:
            return any(_is_meant(channel, sensor) for sensor in self._sensors)
        return _is_inlet(channel) or _is_rail(channel)

    def _mapped(self, channels: list[Channel]) -> list[DeviceReading]:
        readings = []
        for sensor in self._sensors:
            found = [c for c in channels if _is_meant(c, sensor)]
            if not found:
                self.nulled[sensor.sensor, "no such channel"] += 1
                continue
            value = self._value(found[0], sensor.sensor, sensor.factor)
            readings.append(self._reading(sensor.sensor, value, sensor.device, found[0]))
        return readings

    def _labelled(self, channels: list[Channel]) -> list[DeviceReading]:
        readings = []
        for sensor, is_it in (("ambient_celsius", _is_inlet), ("vrm_voltage_volts", _is_rail)):
            for channel in channels:
                if not is_it(channel):
                    continue
                value = self._value(channel, sensor, 1.0)
                if value is not None and _is_rail(channel) and not _is_12(value):
                    self.nulled[sensor, "not scaled to 12 V"] += 1
                elif value is not None:
                    readings.append(self._reading(sensor, value, EVERY_CARD, channel))
                    break
        return readings

    def _value(self, channel: Channel, sensor: str, factor: float) -> float | None:
        if channel.fault:
            self.nulled[sensor, "faulty channel"] += 1
            return None
        return plausible(
            sensor, None if channel.value is None else channel.value * factor, self.nulled
        )

    def _reading(
        self, sensor: str, value: float | None, target: str, channel: Channel
    ) -> DeviceReading:
        reading: DeviceReading = {"attach": target, sensor: value}
        if sensor == "vrm_voltage_volts" and value is not None:
            key = f"{channel.chip} {channel.name}"
            rail = self._rails.setdefault(key, deque(maxlen=SPREAD_SAMPLES))
            rail.append(value)
            if len(rail) > 2:
                reading["vrm_ripple_volts"] = round(max(rail) - min(rail), 6)
                reading["methods"] = {"vrm_ripple_volts": SPREAD_METHOD}
        return reading

    def _of_node(self, channels: list[Channel], readings: list[DeviceReading]) -> DeviceReading:
        """The rig's own entry, where the agent watches no cards: with its slowest turning fan."""
        whole: DeviceReading = {"device": self._node, "state": "ok"}
        for reading in readings:
            whole = {**reading, **whole}
        whole.pop("attach", None)
        if whole.get("fan_speed_rpm") is None:
            speeds = [self._value(c, "fan_speed_rpm", 1.0) for c in channels if c.kind == "fan"]
            turning = [rpm for rpm in speeds if rpm]  # a header without a fan reads 0
            whole["fan_speed_rpm"] = min(turning, default=None)
        return whole


def _is_meant(channel: Channel, sensor: HwmonSensor) -> bool:
    # sensors(1) calls nct6798 on the ISA bus nct6798-isa-02a0.
    names = (channel.chip, channel.chip.split("-")[0])
    if not any(fnmatch.fnmatch(name, sensor.chip) for name in names):
        return False
    return sensor.channel in (channel.name, channel.label)


def _is_inlet(channel: Channel) -> bool:
    return channel.kind == "temp" and bool(INLET.search(channel.label or ""))


def _is_rail(channel: Channel) -> bool:
    return channel.kind == "in" and RAIL_12V.search(channel.label or "") is not None


def _is_12(volts: float) -> bool:
    low, high = RAIL_VOLTS
    return low <= volts <= high
