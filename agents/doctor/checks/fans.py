"""Fans: the cards' own and the chassis'."""

from pathlib import Path
from typing import Final

from agents.doctor import boards
from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_HOT_CELSIUS: Final = 60.0
"""A card with a fan-stop mode starts its fan between 50 and 60 °C."""

_CARD_CHIPS: Final = ("nouveau", "amdgpu", "wormhole", "blackhole", "grayskull", "tenstorrent")


def fans(machine: Machine) -> list[Finding]:
    """Each card's fan turns when it must."""
    return [
        _nvidia(card) if card.vendor == rig.NVIDIA else _tenstorrent(machine, card)
        for card in rig.cards(machine)
    ]


def _nvidia(card: rig.Card) -> Finding:
    duty = card.number("fan_speed")
    temperature = card.number("temperature/gpu_temp")
    if duty is None:
        return Finding(
            "fans", card.device, Status.UNKNOWN, "no fan shown", "",
            "a passive card (or one whose fan the driver cannot read): the chassis must cool it"
            if card.xml is not None
            else "nvidia-smi does not show the card",
            "see chassis-fans; watch the temperature under load",
        )  # fmt: skip
    at = "" if temperature is None else f" at {temperature:g} °C"
    if duty == 0 and temperature is not None and temperature >= _HOT_CELSIUS:
        return Finding(
            "fans", card.device, Status.FAIL, f"0 %{at}", "turning when hot",
            "a hot card's fan stands still", "stop its work; check the fan's plug, replace the fan",
        )  # fmt: skip
    reason = "a cool card may stop its fan; see it turn under load" if duty == 0 else ""
    return Finding("fans", card.device, Status.PASS, f"{duty:g} %{at}", "turning when hot", reason)


def _tenstorrent(machine: Machine, card: rig.Card) -> Finding:
    rpm = boards.board_fan_rpm(machine, card)
    if rpm is None:
        return Finding(
            "fans", card.device, Status.UNKNOWN, "no fan shown", "",
            "no hwmon fan and none in tt-smi; see tt-cooling",
        )  # fmt: skip
    return Finding("fans", card.device, Status.PASS, f"{rpm:g} rpm", "")


def chassis_rpm(machine: Machine) -> dict[str, float]:
    """``chip/fanN`` → rpm of every hwmon fan that is not on a card."""
    found = {}
    for folder in machine.entries("/sys/class/hwmon"):
        chip = machine.read(folder / "name") or folder.name
        if not chip.startswith(_CARD_CHIPS):
            for path in machine.entries(folder):
                if path.name.startswith("fan") and path.name.endswith("_input"):
                    rpm = rig.leading_number(machine.read(path))
                    if rpm is not None:
                        found[f"{chip}/{path.name.removesuffix('_input')}"] = rpm
    return found or _bmc_rpm(machine)


def _bmc_rpm(machine: Machine) -> dict[str, float]:
    """Fans of the board's management controller; ipmitool needs root or access to /dev/ipmi0."""
    found = {}
    for line in (machine.run("ipmitool", "sdr", "type", "fan").good or "").splitlines():
        # Fan1 | 30h | ok | 7.1 | 5040 RPM, or Fan 1A Tach | 2610 RPM | ok
        name, *columns = (column.strip() for column in line.split("|"))
        reading = next((column for column in columns if column.endswith("RPM")), None)
        rpm = rig.leading_number(reading)
        if rpm is not None:
            found[f"ipmi/{name}"] = rpm
    return found


def chassis(machine: Machine) -> list[Finding]:
    """Fans of the board that are seen, and whether one of them raises an alarm."""
    name = "chassis-fans"
    rpm = chassis_rpm(machine)
    if not rpm:
        root = "" if machine.is_root else " (root)"
        return [
            Finding(
                name,
                None,
                Status.UNKNOWN,
                "none shown",
                "",
                "no hwmon chip shows a fan: its driver is not loaded, or the board's management "
                "controller keeps them",
                f"sensors-detect (root) finds the chip; ipmitool sdr type fan{root} asks the BMC",
            )
        ]
    alarms = [fan for fan in rpm if _alarm(machine, fan)]
    if alarms:
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                f"alarm: {', '.join(alarms)}",
                "no alarm",
                "the chip says this fan is below its minimum",
                "replace the fan",
            )
        ]
    turning = sum(1 for value in rpm.values() if value > 0)
    if not turning:
        return [
            Finding(
                name,
                None,
                Status.WARN,
                f"{len(rpm)} shown, none turns",
                "air",
                "no fan that the board measures turns",
                "look whether they hang on another header",
            )
        ]
    idle = len(rpm) - turning
    return [
        Finding(
            name,
            None,
            Status.PASS,
            f"{turning} turn" + (f", {idle} at 0 rpm" if idle else ""),
            "",
            "0 rpm is what an empty header says too" if idle else "",
        )
    ]


def _alarm(machine: Machine, fan: str) -> bool:
    chip, _, name = fan.partition("/")
    for folder in machine.entries("/sys/class/hwmon"):
        if (machine.read(folder / "name") or folder.name) == chip and _raised(
            machine, folder, name
        ):
            return True
    return False


def _raised(machine: Machine, folder: Path, name: str) -> bool:
    # An empty header raises its alarm too, where nobody set a minimum for it.
    minimum = rig.leading_number(machine.read(folder / f"{name}_min"))
    return machine.read(folder / f"{name}_alarm") == "1" and bool(minimum)
