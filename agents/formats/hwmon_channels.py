"""The channels of monitoring chips, of ``/sys/class/hwmon`` or of the JSON of ``sensors -j``."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agents.source import ReadFailed
from agents.sysfs import follow, listdir, read_float, read_int, read_text

_INPUT: Final = re.compile(r"(?P<kind>temp|in|fan|curr|power)(?P<number>\d+)_(?:input|average)")
_PWM: Final = re.compile(r"pwm(?P<number>\d+)")
_UNIT: Final = {"temp": 1e-3, "in": 1e-3, "fan": 1.0, "curr": 1e-3, "power": 1e-6, "pwm": 1 / 255}
"""hwmon's units (m°C, mV, rpm, mA, µW, duty of 255) in base units."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One input of one chip; ``value`` in base units, None where the chip calls it faulty.

    ``name`` is ``temp2``, ``in1``, ``fan3``, ``pwm1``; ``label`` what the board calls it.
    """

    chip: str
    name: str
    label: str | None
    value: float | None
    fault: bool = False

    @property
    def kind(self) -> str:
        return self.name.rstrip("0123456789")


Want = Callable[[Channel], bool]


def of_sysfs(root: Path, want: Want = lambda _: True) -> list[Channel]:
    """The channels under ``root/class/hwmon`` (``root`` is ``/sys`` or a copy of it).

    ``want`` is asked of a channel without its value: some chips take long to give one.
    """
    found: list[Channel] = []
    for entry in listdir(root / "class" / "hwmon", "hwmon"):
        folder = follow(entry)
        # Old drivers keep their files in the device's folder.
        if not (folder / "name").exists() and (folder / "device" / "name").exists():
            folder = folder / "device"
        found += _of_folder(folder, _name(folder) or entry.name, want)
    return found


def has_chips(root: Path) -> bool:
    """Whether there is any chip under ``root``."""
    return bool(listdir(root / "class" / "hwmon", "hwmon"))


def of_json(printed: bytes) -> list[Channel]:
    """Every channel in the output of ``sensors -j``.

    Raises:
        ReadFailed: it is not that.
    """
    try:
        chips = json.loads(printed)
    except (ValueError, RecursionError) as error:
        raise ReadFailed(f"not the JSON of sensors -j: {error}") from error
    if not isinstance(chips, dict):
        raise ReadFailed("not the JSON of sensors -j: no object of chips")
    return [
        channel
        for chip, features in chips.items()
        if isinstance(features, dict)
        for channel in _of_features(chip, features)
    ]


def _name(folder: Path) -> str | None:
    try:
        return read_text(folder / "name")
    except OSError:
        return None  # the chip is being taken away


def _of_folder(folder: Path, chip: str, want: Want) -> Iterator[Channel]:
    for entry in listdir(folder, ""):
        if (found := _INPUT.fullmatch(entry.name)) is not None:
            kind, name = found["kind"], f"{found['kind']}{found['number']}"
        elif (found := _PWM.fullmatch(entry.name)) is not None:
            kind, name = "pwm", entry.name
        else:
            continue
        label = None
        try:
            label = read_text(folder / f"{name}_label")
            if not want(Channel(chip, name, label, None)):
                continue
            fault = read_int(folder / f"{name}_fault") == 1
            value = None if fault else read_float(entry)
        except OSError:
            # One input that answers with an error (a sensor that was unplugged) leaves the rest.
            yield Channel(chip, name, label, None, fault=True)
            continue
        yield Channel(chip, name, label, None if value is None else value * _UNIT[kind], fault)


def _of_features(chip: str, features: dict[str, Any]) -> Iterator[Channel]:
    for label, values in features.items():
        if not isinstance(values, dict):
            continue
        for key, value in values.items():
            found = _INPUT.fullmatch(key)
            if found is None:
                continue
            name = f"{found['kind']}{found['number']}"
            fault = bool(values.get(f"{name}_fault"))
            number = (
                float(value)
                if isinstance(value, int | float) and not isinstance(value, bool) and not fault
                else None
            )
            yield Channel(chip, name, None if label == name else label, number, fault)
