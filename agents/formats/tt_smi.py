"""The JSON of ``tt-smi -s`` → chips.

Its values are text padded with blanks, or "N/A"; the raw tags in ``smbus_telem`` are hexadecimal
text or null. For a tag that a firmware does not have tt-smi prints a number all the same (10000.00
V, 0.0 °C, 0 A, 0 RPM), so a value counts only where its tag is there.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from agents.nulled import Nulled, plausible
from agents.plausible import is_sentinel
from agents.source import DeviceReading, ReadFailed

HUNG_CELSIUS: Final = 65_536.0
"""What a chip that hangs shows: its registers read as all ones, in 16.16 fixed point."""
_MISSING_VOLTS: Final = 10_000.0
_ONE_CHIP: Final = ("n150", "p100", "p150", "e75", "e150")
_CORRECTED: Final = tuple(f"GDDR_{pair}_CORR_ERRS" for pair in ("0_1", "2_3", "4_5", "6_7"))
_UNCORRECTED: Final = "GDDR_UNCORR_ERRS"
_HEARTBEATS: Final = ("TIMER_HEARTBEAT", "ARC0_HEALTH")
"""Tags that count up while the firmware runs; the second on old firmware of Wormhole."""
ASIC_POWER: Final = "asic-power"
"""Method of ``power_watts`` where only the chip's power is told, not the board's."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip of a snapshot. ``heartbeat`` is the firmware's count, None where it has none."""

    reading: DeviceReading
    heartbeat: int | None


def parse(printed: bytes, nulled: Nulled) -> list[Chip]:
    """The chips in the output of ``tt-smi -s``, in its order.

    ``nulled`` counts the values that were thrown away.

    Raises:
        ReadFailed: it is not that output; the message repeats what was printed.
    """
    text = printed.decode("utf-8", errors="replace")
    try:
        # Notes may stand before it.
        snapshot = json.loads(text[max(0, text.find("{")) :])
    except (ValueError, RecursionError) as error:
        said = text.strip().splitlines()
        raise ReadFailed(
            f"tt-smi -s gave no JSON ({error}): {said[0][:200] if said else 'nothing'}"
        ) from error
    devices = snapshot.get("device_info") if isinstance(snapshot, dict) else None
    if not isinstance(devices, list):
        raise ReadFailed("the JSON has no list device_info: it is no output of tt-smi -s")
    host = snapshot.get("host_info")
    driver = _text(host.get("Driver")) if isinstance(host, dict) else None
    chips = [_chip(d, i, driver, nulled) for i, d in enumerate(devices) if isinstance(d, dict)]
    _tell_apart(chips)
    return chips


def device_name(serial: str | None, board: str | None, address: str | None, side: str) -> str:
    """The name of a chip: its board's serial, and which chip of the board where there are more.

    A board that was never given a serial goes by its PCI address. ``side`` is ``L`` or ``R`` (the
    chip that is reached through the other one) of a board with two.
    """
    known = (serial or "").lower().removeprefix("0x").lstrip("0")
    kind = (board or "").lower()
    if not known:
        return f"TT-{address or 'unknown'}{'-R' if side == 'R' else ''}"
    name = f"TT-{known.rjust(16, '0')}"
    if kind.startswith(_ONE_CHIP):
        return name
    if kind.startswith("n300") or address is None:
        return f"{name}-{side}"
    return f"{name}-{address}"


def _chip(device: dict[str, Any], index: int, driver: str | None, nulled: Nulled) -> Chip:
    board, tags = _section(device, "board_info"), _section(device, "smbus_telem")
    telemetry = _section(device, "telemetry")
    kind, _, side = (_text(board.get("board_type")) or "").partition(" ")
    address = _text(board.get("bus_id"))
    serial = _text(board.get("board_id"))
    remote = address is None or side == "R"
    reading: DeviceReading = {
        "device": device_name(serial, kind, address, "R" if remote else "L"),
        "index": index,
        "vendor": "tenstorrent",
    }
    for key, value in (
        ("model", kind or None),
        ("serial", serial if (serial or "").strip("0") else None),
        ("driver", driver),
        ("pci_address", address.lower() if address else None),
    ):
        if value is not None:
            reading[key] = value
    if not telemetry and not tags:
        return Chip({**reading, "state": "unknown"}, None)  # only the board answered
    if _hung(telemetry, tags):
        nulled["temperature_celsius", "hung chip"] += 1
        return Chip({**reading, "state": "unresponsive"}, None)
    reading["state"] = "ok"
    reading |= _sensors(telemetry, tags, nulled)
    width = _number(board.get("pcie_width"))
    # tt-smi gives no width but the present one.
    reading["pcie_link_width"] = plausible("pcie_link_width", width, nulled)
    return Chip(reading, _heartbeat(telemetry, tags))


def _sensors(telemetry: dict[str, Any], tags: dict[str, Any], nulled: Nulled) -> DeviceReading:
    def value(sensor: str, key: str, tag: str, scale: float = 1.0) -> float | None:
        number = _number(telemetry.get(key))
        if number is None:
            return None
        if tag in tags and tags[tag] is None:
            nulled[sensor, "missing tag"] += 1
            return None
        if number >= _MISSING_VOLTS or (number == 0 and tag not in tags):
            nulled[sensor, "missing tag"] += 1
            return None
        return plausible(sensor, number * scale, nulled)

    out: DeviceReading = {
        "temperature_celsius": value("temperature_celsius", "asic_temperature", "ASIC_TEMPERATURE"),
        "memory_temperature_celsius": plausible(
            "memory_temperature_celsius", _tag(tags, "MAX_GDDR_TEMP"), nulled
        ),
        "vrm_voltage_volts": value("vrm_voltage_volts", "voltage", "VCORE"),
        "ecc_corrected_total": _corrected(tags),
        "ecc_uncorrected_total": _uncorrected(tags),
        "fan_speed_rpm": None,
        "fan_duty_ratio": None,
    }
    if "FAN_RPM" in tags or "fan_rpm" in telemetry:
        rpm = _tag(tags, "FAN_RPM")
        rpm = value("fan_speed_rpm", "fan_rpm", "FAN_RPM") if rpm is None else rpm
        out["fan_speed_rpm"] = plausible("fan_speed_rpm", rpm, nulled)
        out["fan_duty_ratio"] = value("fan_duty_ratio", "fan_speed", "FAN_SPEED", 0.01)
    board_power = _number(telemetry.get("board_power"))
    if board_power is not None and _tag(tags, "INPUT_POWER", None) is not None:
        out["power_watts"] = plausible("power_watts", board_power, nulled)
    else:
        out["power_watts"] = value("power_watts", "power", "TDP")
        if out["power_watts"] is not None:
            out["methods"] = {"power_watts": ASIC_POWER}
    return out


def _hung(telemetry: dict[str, Any], tags: dict[str, Any]) -> bool:
    celsius = _number(telemetry.get("asic_temperature"))
    if celsius is not None and celsius >= HUNG_CELSIUS - 1:
        return True
    present = [t for t in (_raw(v) for v in tags.values()) if t is not None]
    return len(present) > 1 and all(t == 0xFFFFFFFF for t in present)


def _heartbeat(telemetry: dict[str, Any], tags: dict[str, Any]) -> int | None:
    told = _number(telemetry.get("heartbeat"))
    if told is not None:
        return int(told)
    return next((v for v in (_raw(tags.get(t)) for t in _HEARTBEATS) if v is not None), None)


def _corrected(tags: dict[str, Any]) -> float | None:
    """Corrected errors of the memory: each tag holds four counters of 8 bits (read and write of
    two chips).
    """
    found = [v for v in (_raw(tags.get(t)) for t in _CORRECTED) if v is not None]
    if not found or any(map(is_sentinel, found)):
        return None
    return float(sum(sum(v.to_bytes(8, "big")) for v in found))


def _uncorrected(tags: dict[str, Any]) -> float | None:
    """Uncorrected errors: one bit for each memory chip and direction that has had one."""
    found = _raw(tags.get(_UNCORRECTED))
    return None if found is None or is_sentinel(found) else float(found.bit_count())


def _tell_apart(chips: list[Chip]) -> None:
    """Boards with one serial (never written, or masked) go by their address or place as well."""
    seen: set[str] = set()
    for chip in chips:
        name = str(chip.reading["device"])
        if name in seen:
            place = chip.reading.get("pci_address", chip.reading["index"])
            name = f"{name}-{place}"
            if name in seen:
                name = f"{name}-{chip.reading['index']}"
            chip.reading["device"] = name
        seen.add(name)


def _section(device: dict[str, Any], key: str) -> dict[str, Any]:
    section = device.get(key)
    return section if isinstance(section, dict) else {}


def _text(value: object) -> str | None:
    text = str(value).strip() if isinstance(value, str | int) else ""
    return None if text.upper() in ("", "N/A", "NONE") else text


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value.strip().rstrip("%x") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _raw(value: object) -> int | None:
    try:
        if isinstance(value, str):
            number = int(value.strip(), 0)
            return number if 0 <= number < 2**64 else None
    except ValueError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tag(tags: dict[str, Any], name: str, default: float | None = None) -> float | None:
    value = _raw(tags.get(name))
    return default if value is None or is_sentinel(value) else float(value)
