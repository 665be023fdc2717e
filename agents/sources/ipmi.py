"""The source ``ipmi``: what the mainboard's management controller measures, through ``ipmitool``.

ipmitool takes seconds and hangs with its controller, so it runs beside the samples, in a child
that is killed when it is late. A tick without a new answer has no values.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from agents.child import SlowTool
from agents.formats.ipmitool import IpmiValue, parse
from agents.nulled import plausible
from agents.settings import AgentSettings
from agents.source import EVERY_CARD, DeviceReading, Instant, ReadFailed
from agents.sources.hwmon import RAIL_12V, RAIL_VOLTS
from contract.errors import ConfigError

_INLET: Final = re.compile(r"inlet|ambient|intake|front panel temp", re.IGNORECASE)
_NOT_RAIL: Final = re.compile(r"fault|vbat|dimm|stby|aux", re.IGNORECASE)


class IpmiSource:
    """Runs ``ipmitool sdr`` now and then, or reads the file that ``input`` names."""

    name = "ipmi"
    enumerates = False

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings.ipmi
        self._input = settings.input
        if self._input is not None and not self._input.is_file():
            raise ConfigError(f"--input {self._input}: there is no such file")
        self._node = settings.node if settings.rig_only else None
        self._tool = SlowTool(
            self._settings.command, self._settings.every_seconds, self._settings.deadline_seconds
        )
        self.nulled: Counter[tuple[str, str]] = Counter()

    @property
    def pending(self) -> bool:
        return self._tool.pending

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._input is not None:
            try:
                values: list[IpmiValue] | None = parse(self._input.read_bytes())
            except OSError as error:
                raise ReadFailed(f"{self._input}: {error.strerror}") from error
        else:
            values = self._tool.read(now.monotonic, parse)
        if values is None:
            return [] if self._node is None else [{"device": self._node, "state": "ok"}]
        return self._readings(values)

    def close(self) -> None:
        self._tool.close()

    def _readings(self, values: list[IpmiValue]) -> list[DeviceReading]:
        sensors = {
            "ambient_celsius": self._find(values, "celsius", self._settings.ambient, _is_inlet),
            "vrm_voltage_volts": self._find(values, "volts", self._settings.rail, _is_rail),
        }
        found = {
            name: plausible(name, value.value, self.nulled)
            for name, value in sensors.items()
            if value is not None
        }
        if self._node is None:
            return [{"attach": EVERY_CARD, **found}] if found else []
        turning = [v.value for v in values if v.unit == "rpm" and v.value > 0]
        slowest = plausible("fan_speed_rpm", min(turning, default=None), self.nulled)
        return [{"device": self._node, "state": "ok", "fan_speed_rpm": slowest, **found}]

    def _find(
        self,
        values: list[IpmiValue],
        unit: str,
        name: str | None,
        is_it: Callable[[IpmiValue], bool],
    ) -> IpmiValue | None:
        same = [v for v in values if v.unit == unit]
        if name is not None:
            return next((v for v in same if v.name == name), None)
        return next((v for v in same if is_it(v)), None)


def _is_inlet(value: IpmiValue) -> bool:
    return bool(_INLET.search(value.name))


def _is_rail(value: IpmiValue) -> bool:
    low, high = RAIL_VOLTS
    return (
        bool(RAIL_12V.search(value.name))
        and not _NOT_RAIL.search(value.name)
        and low <= value.value <= high
    )
