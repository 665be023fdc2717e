"""A link plan held against the links that are up.

Two sources, of which each says a part:

- tt-umd's cluster descriptor (its ``topology`` tool, or tt-metal, writes it): which chips are
  joined, by how many Ethernet links. A file that the operator names.
- ``tt-smi -s``: a mask of live Ethernet cores a board (``ETH_LIVE_STATUS``, low 16 bits): whether
  a board has any link at all.

Which QSFP-DD port an Ethernet channel leads to is not published, so cards are compared, not ports.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Final

from agents.doctor import cards as rig
from agents.doctor.machine import Machine
from agents.doctor.plan import Pair, Plan, PlanCard, pair, pairs
from contract.errors import ConfigError

_END: Final = re.compile(r"chip:\s*(\d+)[\s,]*chan:\s*\d+")
_LIVE_MASK: Final = 0xFFFF


def descriptor(path: Path) -> tuple[Counter[tuple[int, int]], dict[int, int]]:
    """(links between each pair of chips, chip → number N of ``/dev/tenstorrent/N``).

    Raises:
        ConfigError: the file cannot be read or is no cluster descriptor.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--live {path}: cannot read it: {error}") from error
    section = _section(text, "ethernet_connections")
    if section is None:
        raise ConfigError(
            f"--live {path}: no ethernet_connections in it: not tt-umd's cluster descriptor"
        )
    ends = [int(chip) for chip in _END.findall(section)]
    links: Counter[tuple[int, int]] = Counter()
    for one, other in zip(ends[::2], ends[1::2], strict=False):
        links[min(one, other), max(one, other)] += 1
    numbers = re.findall(r"(\d+)\s*:\s*(\d+)", _section(text, "chips_with_mmio") or "")
    return links, {int(chip): int(number) for chip, number in numbers}


def _section(text: str, key: str) -> str | None:
    """The text of a top-level key of the YAML that UMD writes."""
    found = re.search(rf"^{key}:(.*?)(?=^[A-Za-z_]+:|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else None


def against_descriptor(machine: Machine, plan: Plan, path: Path) -> list[str]:
    """Lines on cables that are planned and not up, and on links that are up and not planned.

    Raises:
        ConfigError: the file is no descriptor, or the plan does not say which card is which.
    """
    links, numbers = descriptor(path)
    chips = {card.name: _chip(machine, card, numbers) for card in plan.cards}
    nameless = [name for name, chip in chips.items() if chip is None]
    if nameless:
        raise ConfigError(
            f"card {nameless[0]} of the plan has no chip and no device that matches a live one: "
            'give it chip = N or device = "PCI address"'
        )
    names = {chip: name for name, chip in chips.items()}
    live: Counter[Pair] = Counter()
    lines = []
    for (one, other), count in sorted(links.items()):
        if one == other:
            continue
        if one in names and other in names:
            live[pair(names[one], names[other])] += count
        else:
            lines.append(f"chips {one} and {other}: linked, but not both in the plan")
    planned = pairs(plan)
    for cable in plan.cables:
        (one_card, one_port), (other_card, other_port) = cable.ends
        if live[pair(one_card, other_card)] == 0:
            lines.append(
                f"cable {cable.name} ({one_card}:{one_port} to {other_card}:{other_port}): no link "
                "is up between these cards"
            )
    lines += [
        f"cards {ends[0]} and {ends[1]}: {count} links are up, and no cable is planned"
        for ends, count in sorted(live.items())
        if ends not in planned
    ]
    counts = {live[ends] / times for ends, times in planned.items() if live[ends]}
    if len(counts) > 1:
        most = max(counts)
        lines += [
            f"cards {ends[0]} and {ends[1]}: {live[ends]} links up, others have {most:g} a cable: "
            "a half-seated plug or a 400G cable among 800G ones"
            for ends, times in sorted(planned.items())
            if 0 < live[ends] / times < most
        ]
    return lines


def _chip(machine: Machine, card: PlanCard, numbers: dict[int, int]) -> int | None:
    if card.chip is not None:
        return card.chip
    address = rig.pci_address(card.device)
    folder = rig.tt_class_folder(machine, address) if address else None
    if folder is None:
        return None
    number = folder.name.rpartition("!")[2]
    return next((chip for chip, n in numbers.items() if str(n) == number), None)


def against_tt_smi(machine: Machine, plan: Plan) -> tuple[list[str], str | None]:
    """(lines on cards that are cabled and have no live link, why nothing could be said or None)."""
    boards = rig.tt_boards(machine)
    if boards is None:
        answer = machine.run(*rig.TT_SMI, deadline_seconds=rig.TT_SMI_DEADLINE_SECONDS)
        return [], answer.problem or "tt-smi -s printed something else than its JSON"
    live = {
        rig.pci_address(rig.field_of(board, "board_info", "bus_id")): _live(board)
        for board in boards
    }
    lines, compared = [], 0
    for card in plan.cards:
        address = rig.pci_address(card.device)
        cables = [c for c in plan.cables if card.name in (c.ends[0][0], c.ends[1][0])]
        if address is None:
            continue
        if address not in live:
            lines.append(f"card {card.name}: tt-smi lists no board at {address}")
            continue
        count = live[address]
        if count is None:
            continue
        compared += 1
        if count < len(cables):
            ends = ", ".join(
                f"{c.name} ({':'.join(map(str, e))})"
                for c in cables
                for e in c.ends
                if e[0] == card.name
            )
            lines.append(
                f"card {card.name} ({address}): {count} Ethernet cores are live, fewer than its "
                f"cables {ends}"
            )
    if not compared and not lines:
        return [], "no card of the plan has a device whose live links tt-smi shows"
    return lines, None


def _live(board: dict[str, object]) -> int | None:
    try:
        mask = int(rig.field_of(board, "smbus_telem", "ETH_LIVE_STATUS") or "", 0)
    except ValueError:
        return None
    return (mask & _LIVE_MASK).bit_count()
