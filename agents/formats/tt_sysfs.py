"""The sysfs of Tenstorrent's kernel driver (tt-kmd) → chips.

hwmon has the sensors by label (``asic_temp``, ``vcore``, ``current``, ``power``, ``fan_rpm``;
``asic1_…`` and ``asic2_…`` on boards with two chips), the class device the identity, the heartbeat
and the thermal trips, the PCI device the link.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agents.formats.tt_smi import ASIC_POWER, device_name
from agents.nulled import Nulled, plausible
from agents.plausible import is_sentinel
from agents.source import DeviceReading
from agents.sysfs import follow, listdir, pci_address_of, read_float, read_int, read_text

_SENSORS: Final = {
    # what: (sensor, hwmon's unit in base units)
    "temp": ("temperature_celsius", 1e-3),
    "vcore": ("vrm_voltage_volts", 1e-3),
    "power": ("power_watts", 1e-6),
    "fan_rpm": ("fan_speed_rpm", 1.0),
}
_LABEL: Final = re.compile(
    r"(?:asic(?P<chip>\d?)_)?(?P<what>temp|vcore|current|power|fan_rpm)(?P<tail>\d?)"
)
_CHANNEL: Final = re.compile(r"(?:temp|in|curr|power|fan)\d+_label")
_MOST_AMPERES: Final = 2000.0
"""No chip draws that; what a register of ones says is above."""


@dataclass(frozen=True, slots=True)
class SysfsChip:
    """One chip at one read.

    ``counters`` are the 32-bit counters of PCIe words by name; ``hung`` says that its registers
    read as all ones, ``gone`` that the kernel answers with an error for each of them.
    """

    reading: DeviceReading
    heartbeat: int | None
    therm_trips: int | None
    counters: dict[str, int] = field(default_factory=dict)


def folders(root: Path) -> list[Path]:
    """The driver's folder of each card, by number; ``root`` is ``/sys``."""
    return listdir(root / "class" / "tenstorrent", "tenstorrent")


def read_card(folder: Path, index: int, nulled: Nulled) -> list[SysfsChip]:
    """The chips of one card, the one on the bus first.

    Sensors that a firmware does not have are None; what is impossible is counted in ``nulled``.

    Raises:
        OSError: the kernel answers with an error: the card is lost.
    """
    folder = follow(folder)
    device = follow(folder / "device")
    address = pci_address_of(device)
    board = read_text(folder / "tt_card_type")
    serial = read_text(folder / "tt_serial")
    identity: DeviceReading = {"index": index, "vendor": "tenstorrent"}
    for key, value in (("model", board), ("serial", serial), ("pci_address", address)):
        if value is not None:
            identity[key] = value
    heartbeat = read_int(folder / "tt_heartbeat")
    trips = read_int(folder / "tt_therm_trip_count")
    by_chip = _channels(device)
    chips = []
    for chip, channels in sorted(by_chip.items() or [(1, {})]):
        side = "L" if chip == 1 else "R"
        name = device_name(serial, board, address, side)
        reading: DeviceReading = {"device": name, **identity}
        raw = {what: read_int(path) for what, path in channels.items()}
        if _hung(raw):
            nulled["temperature_celsius", "hung chip"] += 1
            chips.append(SysfsChip({**reading, "state": "unresponsive"}, None, None))
            continue
        reading["state"] = "ok"
        for what, (sensor, unit) in _SENSORS.items():
            number = raw.get(what)
            if number is not None and _is_ones(number):
                nulled[sensor, "sentinel"] += 1
                number = None
            reading[sensor] = plausible(sensor, None if number is None else number * unit, nulled)
        details = {"core_current_amperes": _amperes(raw.get("current"))}
        if reading["power_watts"] is not None:
            reading["methods"] = {"power_watts": ASIC_POWER}
        if chip == 1:
            for sensor, file in (
                ("pcie_link_width", "current_link_width"),
                ("pcie_link_width_max", "max_link_width"),
            ):
                width = read_int(device / file)
                reading[sensor] = plausible(sensor, width, nulled)
            details["core_clock_megahertz"] = read_float(folder / "tt_aiclk")
        reading["details"] = {k: v for k, v in details.items() if v is not None}
        first = chip == 1
        chips.append(
            SysfsChip(
                reading,
                heartbeat if first and not _none(heartbeat) else None,
                trips if first and not _none(trips) else None,
                _counters(folder) if first else {},
            )
        )
    return chips


def has_sensors(folder: Path) -> bool:
    """Whether the driver gives this card's sensors: with some firmware it cannot."""
    try:
        return bool(_channels(follow(follow(folder) / "device")))
    except OSError:
        return True  # they are there and answer with an error: the card's trouble, not the driver's


def _channels(device: Path) -> dict[int, dict[str, Path]]:
    """Chip number (1, 2) → what → its file."""
    found: dict[int, dict[str, Path]] = {}
    for hwmon in listdir(device / "hwmon", "hwmon"):
        for entry in listdir(hwmon, ""):
            if _CHANNEL.fullmatch(entry.name) is None:
                continue
            label = _LABEL.fullmatch(read_text(entry) or "")
            if label is not None:
                chip = int(label["chip"] or label["tail"] or 1)
                file = hwmon / entry.name.replace("_label", "_input")
                found.setdefault(chip, {}).setdefault(label["what"], file)
    return found


def _hung(raw: dict[str, int | None]) -> bool:
    ones = [value for value in raw.values() if value is not None and _is_ones(value)]
    return raw.get("temp") in (65_536_000, 65_535_000) or len(ones) > 1


def _none(value: int | None) -> bool:
    return value is None or is_sentinel(value)


def _amperes(milliamperes: int | None) -> float | None:
    if milliamperes is None or not 0 <= milliamperes <= _MOST_AMPERES * 1000:
        return None
    return milliamperes / 1000


def _is_ones(value: int) -> bool:
    # hwmon's units multiply what was 32 bits of ones: 4.29 MV, 4.29 kW, 4294967295 rpm.
    return is_sentinel(value) or value in (0xFFFFFFFF * 1000, 0xFFFFFFFF * 1_000_000)


def _counters(folder: Path) -> dict[str, int]:
    out = {}
    for entry in listdir(folder / "pcie_perf_counters", ""):
        value = read_int(entry)
        if value is not None:
            out[entry.name] = value
    return out
