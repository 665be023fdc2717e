"""Runs the checks over a machine."""

from dataclasses import dataclass
from typing import Any

from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status, count
from agents.doctor.machine import Machine
from agents.doctor.table import CHECKS, Options


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. ``not_applicable`` are the checks that had nothing to look at."""

    cards: list[rig.Card]
    findings: list[Finding]
    not_applicable: list[str]

    @property
    def exit_code(self) -> int:
        """0 where nothing failed, else 1."""
        return 1 if any(f.status is Status.FAIL for f in self.findings) else 0

    def as_json(self) -> dict[str, Any]:
        """The object that ``rigcanary doctor --json`` prints."""
        return {
            "checks": [
                {
                    "name": f.name,
                    "device": f.device,
                    "status": str(f.status),
                    "found": f.found,
                    "wanted": f.wanted,
                    "reason": f.reason,
                    "fix": f.fix,
                }
                for f in self.findings
            ],
            "summary": {**count(self.findings), "exit_code": self.exit_code},
            "cards": [
                {"device": c.device, "pci": c.address, "vendor": c.vendor, "model": c.model}
                for c in self.cards
            ],
            "not_applicable": self.not_applicable,
        }


def diagnose(machine: Machine, options: Options) -> Report:
    """Run every check that applies; a tool is asked once, whatever the number of checks."""
    cards = rig.cards(machine)
    present = {card.vendor for card in cards} | ({"card"} if cards else set())
    findings = [_cards_found(machine, cards), *_lost(cards)]
    skipped = []
    for check in CHECKS:
        if check.needs is None or check.needs in present:
            findings += check.look(machine, options)
        else:
            skipped.append(check.name)
    return Report(cards, findings, skipped)


def _lost(cards: list[rig.Card]) -> list[Finding]:
    return [
        Finding(
            "cards",
            card.device,
            Status.FAIL,
            "lost",
            "a card that answers",
            "the driver says the card is gone: it fell off the bus or its firmware crashed",
            "read the kernel log for Xid lines (root: dmesg), cold-start the rig, reseat the card",
        )
        for card in cards
        if card.lost
    ]


def _cards_found(machine: Machine, cards: list[rig.Card]) -> Finding:
    if cards:
        blind = [c.address for c in cards if c.vendor == rig.NVIDIA and c.xml is None]
        if blind and rig.nvidia_log(machine) is not None:
            return Finding(
                "cards",
                None,
                Status.FAIL,
                f"{len(cards)}, of which nvidia-smi does not list {', '.join(blind)}",
                "all cards that are on the PCI bus",
                "the card is on the bus but its driver lost or refused it",
                "read the kernel log for NVRM and Xid lines of that address, then reseat the card "
                "and its power cables",
            )
        return Finding("cards", None, Status.PASS, str(len(cards)))
    return Finding(
        "cards",
        None,
        Status.UNKNOWN,
        "none",
        "a card",
        "neither the PCI bus nor nvidia-smi nor tt-smi shows an NVIDIA or Tenstorrent card; "
        + (machine.run(*rig.NVIDIA_SMI).problem or "nvidia-smi lists no card"),
        "check with: lspci -d 10de: ; lspci -d 1e52:  (in a container, pass the devices in)",
    )
