"""Bandwidth between host and card, where a tool measures it.

NVIDIA's nvbandwidth (``-j``) copies for some seconds at full speed, so it runs only when asked.
For Tenstorrent no tool that ships with the driver measures it: tt-kmd's counters say how much was
moved, not how much could be.
"""

from typing import Any, Final

import orjson

from agents.doctor import cards as rig
from agents.doctor.checks import pcie
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

COMMAND: Final = ("nvbandwidth", "-t", "host_to_device_memcpy_ce", "-j")
DEADLINE_SECONDS: Final = 120.0

_GB_PER_LANE: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane and direction after line coding, by PCIe generation."""

_GOOD_RATIO: Final = 0.7
"""Packet headers and flow control cost 10 to 20 %; under 70 % something else takes it."""


def link(machine: Machine, *, measure: bool) -> list[Finding]:
    """Measured copies to each card against what its link should carry."""
    found = []
    nvidia = rig.of_vendor(machine, rig.NVIDIA)
    rates = _measured(machine) if measure and nvidia else None
    for index, card in enumerate(nvidia):
        found.append(_judge(machine, card, index, rates, measure=measure))
    found += [
        Finding(
            "link-bandwidth", card.device, Status.UNKNOWN, "not measured", "",
            "no tool of the Tenstorrent driver measures it",
        )
        for card in rig.of_vendor(machine, rig.TENSTORRENT)
    ]  # fmt: skip
    return found


def _judge(
    machine: Machine, card: rig.Card, index: int, rates: list[float] | None, *, measure: bool
) -> Finding:
    name = "link-bandwidth"
    if rates is None or index >= len(rates):
        problem = (
            machine.run(*COMMAND, deadline_seconds=DEADLINE_SECONDS).problem if measure else ""
        )
        return Finding(
            name, card.device, Status.UNKNOWN, "not measured", "",
            (problem or "nvbandwidth gave no figure for this card") if measure
            else "measuring loads the card for some seconds",
            "install NVIDIA's nvbandwidth" if measure
            else "when no job runs: rigcanary doctor --measure",
        )  # fmt: skip
    rate = rates[index]
    lanes, most_lanes, port_lanes = pcie.widths(machine, card)
    _, generation = pcie.generations(machine, card)
    lanes = lanes or min((n for n in (most_lanes, port_lanes) if n), default=None)
    if lanes is None or generation not in _GB_PER_LANE:
        return Finding(
            name, card.device, Status.UNKNOWN, f"{rate:g} GB/s", "",
            "the link's width or generation is not shown, so there is nothing to hold it against",
        )  # fmt: skip
    possible = _GB_PER_LANE[generation] * lanes
    wanted = f"{possible * _GOOD_RATIO:.1f} GB/s (gen {generation} x{lanes})"
    if rate < possible * _GOOD_RATIO:
        return Finding(
            name, card.device, Status.WARN, f"{rate:g} GB/s", wanted,
            "the link moves less than it should: repeats, a shared switch, or far memory (NUMA)",
            "look at aer-counters and pcie-replays; run it from the card's own NUMA node",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, f"{rate:g} GB/s", wanted)


def _measured(machine: Machine) -> list[float] | None:
    """GB/s to each card, in the tool's order; None where it gave none."""
    text = machine.run(*COMMAND, deadline_seconds=DEADLINE_SECONDS).good
    if text is None or "{" not in text:
        return None
    try:
        body: Any = orjson.loads(text[text.index("{") : text.rindex("}") + 1])
        cases = body["nvbandwidth"]["testcases"]
        rows = next(c["bandwidth_matrix"] for c in cases if c["status"] == "Passed")
        return [float(cell) for row in rows for cell in row if cell != "N/A"]
    except (orjson.JSONDecodeError, KeyError, StopIteration, TypeError, ValueError):
        return None
