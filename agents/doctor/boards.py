"""What several checks ask of a Tenstorrent board.

Facts: tt-kmd's docs/sysfs-attributes.md; Tenstorrent's specifications of the Blackhole boards
(p100a and p150a have a fan, p150b is passive and needs forced air).
"""

from pathlib import Path
from typing import Final

from agents.doctor import cards as rig
from agents.doctor.machine import Machine

ACTIVE_BOARDS: Final = ("p100a", "p150a")
PASSIVE_BOARDS: Final = ("p150b",)
BLACKHOLE_BOARDS: Final = (*ACTIVE_BOARDS, *PASSIVE_BOARDS)


def hwmon(machine: Machine, card: rig.Card) -> Path | None:
    """tt-kmd's hwmon folder of the card."""
    if card.folder is None:
        return None
    return next(iter(machine.entries(card.folder / "hwmon")), None)


def gddr_celsius(card: rig.Card) -> float | None:
    """The hottest GDDR chip in °C as tt-smi's snapshot has it (hex or decimal text)."""
    number = integer(rig.field_of(card.board, "smbus_telem", "MAX_GDDR_TEMP"))
    return float(number) if number is not None and 0 < number < 150 else None


def board_fan_rpm(machine: Machine, card: rig.Card) -> float | None:
    """The board's fan in rpm from hwmon, else from tt-smi; a missing tag is None."""
    folder = hwmon(machine, card)
    rpm = rig.leading_number(machine.read(folder / "fan1_input")) if folder else None
    if rpm is None:
        text = rig.field_of(card.board, "telemetry", "fan_speed")
        rpm = rig.leading_number(text)
        # tt-smi prints 0 for a tag that the firmware does not have.
        rpm = rpm or None
    return rpm if rpm is not None and rpm < 100_000 else None


def integer(text: str | None) -> int | None:
    """A number as tt-kmd and tt-smi write them, decimal or ``0x…``; None for anything else."""
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return None
