"""Power: does the supply carry the cards, and does the connector.

Facts: Tenstorrent's specifications (p100a, p150a, p150b: 300 W board power, one 12V-2x6 plug);
PCI-SIG's 12VHPWR / 12V-2x6 carries 150, 300, 450 or 600 W, as the cable's sense pins say.
"""

from typing import Final

from agents.doctor import boards
from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

BLACKHOLE_WATTS: Final = 300.0
CONNECTOR_WATTS: Final = 600.0
HOST_WATTS: Final = 150.0
"""Assumed for board, CPU, disks and fans; a workstation's CPU needs more: subtract it yourself."""

CONTINUOUS_RATIO: Final = 0.8
"""A supply under steady load is planned to 80 % of its rating; spikes take the rest."""


def supply(machine: Machine, supply_watts: float | None) -> list[Finding]:
    """All cards at their limits, and the host, against the supply's rating."""
    limits = {card.device: limit_watts(card) for card in rig.cards(machine)}
    known = [watts for watts in limits.values() if watts is not None]
    missing = len(limits) - len(known)
    if not known:
        return [
            Finding(
                "supply",
                None,
                Status.UNKNOWN,
                "no card's limit is shown",
                "",
                "neither nvidia-smi nor the board's type gives a power limit",
            )
        ]
    total = sum(known) + HOST_WATTS
    found = f"cards {sum(known):g} W + host {HOST_WATTS:g} W"
    if missing:
        found += f", {missing} cards unknown"
    if supply_watts is None:
        return [
            Finding(
                "supply",
                None,
                Status.UNKNOWN,
                found,
                f"a supply of {total / CONTINUOUS_RATIO:.0f} W or more",
                "no tool reads a supply's rating",
                "say it: rigcanary doctor --supply-watts N",
            )
        ]
    wanted = f"at most {CONTINUOUS_RATIO:.0%} of {supply_watts:g} W"
    if total > supply_watts:
        status, reason = Status.FAIL, "all cards at their limit draw more than the supply gives"
    elif total > supply_watts * CONTINUOUS_RATIO:
        status, reason = Status.WARN, "little is left for spikes, which switch a supply off"
    elif missing:
        status, reason = Status.UNKNOWN, "enough for the cards whose limit is known"
    else:
        return [Finding("supply", None, Status.PASS, found, wanted)]
    return [
        Finding(
            "supply",
            None,
            status,
            found,
            wanted,
            reason,
            "a larger supply, or lower limits (nvidia-smi -pl W, root)",
        )
    ]


def power_limit(machine: Machine) -> list[Finding]:
    """A power limit that somebody set below the card's own."""
    found = []
    for card in rig.of_vendor(machine, rig.NVIDIA):
        limit = limit_watts(card)
        default = card.number("gpu_power_readings/default_power_limit") or card.number(
            "power_readings/default_power_limit"
        )
        if limit is None or default is None:
            status, text, reason, fix = Status.UNKNOWN, "not shown", "the driver gives none", ""
        elif limit < default:
            status, text = Status.WARN, f"{limit:g} W"
            reason = (
                "somebody lowered it: kind to the card, but heat, fans and supply are then tested "
                "at less than they must bear"
            )
            fix = f"for a buyer's test: nvidia-smi -pl {default:g} (root)"
        elif limit > default:
            status, text = Status.WARN, f"{limit:g} W"
            reason = "somebody raised it above the card's own"
            fix = f"nvidia-smi -pl {default:g} (root)"
        else:
            status, text, reason, fix = Status.PASS, f"{limit:g} W", "", ""
        wanted = "" if default is None else f"{default:g} W, the default"
        found.append(Finding("power-limit", card.device, status, text, wanted, reason, fix))
    return found


def limit_watts(card: rig.Card) -> float | None:
    """The most that a card may draw in W."""
    if card.vendor == rig.TENSTORRENT:
        return BLACKHOLE_WATTS if card.model in boards.BLACKHOLE_BOARDS else None
    for path in (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ):
        watts = card.number(path)
        if watts:
            return watts
    return None


def connector(machine: Machine) -> list[Finding]:
    """What a Blackhole board draws now, and what its 12VHPWR (12V-2x6) plug is left with."""
    return [_connector(machine, card) for card in rig.of_vendor(machine, rig.TENSTORRENT)]


def _connector(machine: Machine, card: rig.Card) -> Finding:
    name = "tt-connector"
    if card.model not in boards.BLACKHOLE_BOARDS:
        return Finding(
            name, card.device, Status.UNKNOWN, card.model, "",
            "known for p100a, p150a and p150b only",
        )  # fmt: skip
    wanted = f"board {BLACKHOLE_WATTS:g} W, plug {CONNECTOR_WATTS:g} W"
    cable = "a cable whose sense pins say 450 W or 600 W; no tool can read them: look at its print"
    watts = _now_watts(machine, card)
    if watts is None:
        return Finding(
            name, card.device, Status.UNKNOWN, "draw not shown", wanted,
            "neither hwmon nor tt-smi gives the board's power", cable,
        )  # fmt: skip
    left = CONNECTOR_WATTS - watts
    found = f"draws {watts:g} W, {left:g} W left"
    if watts > BLACKHOLE_WATTS:
        return Finding(
            name, card.device, Status.WARN, found, wanted,
            "more than the board's rated power: a 300 W adapter cable melts here",
            f"use {cable}",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, found, wanted, f"with {cable}")


def _now_watts(machine: Machine, card: rig.Card) -> float | None:
    folder = boards.hwmon(machine, card)
    microwatts = rig.leading_number(machine.read(folder / "power1_input")) if folder else None
    if microwatts is not None:
        watts = microwatts / 1e6
    else:
        text = rig.field_of(card.board, "telemetry", "power")
        number = rig.leading_number(text)
        if number is None:
            return None
        watts = number
    # A hung chip reads as 4.29 kW.
    return watts if 0 < watts < 1500 else None
