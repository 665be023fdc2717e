"""Memory windows (BARs): did the firmware give them room, and is the large one as large as it can.

Facts: include/linux/ioport.h for the flags of ``resource``; Documentation/ABI for
``resourceN_resize`` (a bit mask, bit n stands for 2^n MiB).
"""

from dataclasses import dataclass
from typing import Final

from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_MEMORY: Final = 0x200
_64_BIT: Final = 0x100000
_UNSET: Final = 0x20000000
_BARS: Final = 6
_MIB: Final = 1 << 20
_4G: Final = 1 << 32
_LARGE_BYTES: Final = 256 * _MIB
_WITHOUT_RESIZABLE: Final = ("Fermi", "Kepler", "Maxwell", "Pascal", "Volta", "Turing")
"""NVIDIA's generations before resizable BAR (GeForce has it from Ampere on)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One memory window. ``start`` is its bus address, None where it was given none."""

    index: int
    start: int | None
    size_bytes: int
    wide: bool
    """Whether it may lie above 4 GiB."""


def bars_of(machine: Machine, card: rig.Card) -> list[Bar] | None:
    """The card's memory BARs; None where sysfs does not show them."""
    text = None if card.folder is None else machine.read(card.folder / "resource")
    if text is None:
        return None
    found = []
    for index, line in enumerate(text.splitlines()[:_BARS]):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            return None
        if flags & _MEMORY and end > start:
            placed = start if start and not flags & _UNSET else None
            found.append(Bar(index, placed, end - start + 1, bool(flags & _64_BIT)))
    return found


def above_4g(machine: Machine) -> list[Finding]:
    """Every BAR has an address, and the large ones lie above 4 GiB."""
    return [_above_4g(machine, card) for card in rig.cards(machine)]


def _above_4g(machine: Machine, card: rig.Card) -> Finding:
    name = "above-4g"
    bars = bars_of(machine, card)
    if not bars:
        return Finding(
            name, card.device, Status.UNKNOWN, "BARs not shown", "",
            "sysfs does not show the card's memory windows",
            f"lspci -vv -s {card.address} (as root), lines Region",
        )  # fmt: skip
    fix = "enable Above 4G Decoding (and disable CSM) in the BIOS; update the BIOS if it has none"
    lost = [bar for bar in bars if bar.start is None]
    if lost:
        return Finding(
            name, card.device, Status.FAIL,
            f"BAR {lost[0].index} ({_size(lost[0].size_bytes)}) has no address", "an address",
            "the firmware had no room for it; the driver cannot use the card", fix,
        )  # fmt: skip
    largest = max(bars, key=lambda bar: bar.size_bytes)
    found = f"BAR {largest.index} of {_size(largest.size_bytes)}"
    if largest.wide and largest.size_bytes >= _LARGE_BYTES and (largest.start or 0) < _4G:
        return Finding(
            name, card.device, Status.WARN, f"{found} below 4 GiB", "above 4 GiB",
            "the windows of all cards share the small room below 4 GiB; a rig of many cards, or "
            "a resizable BAR, will not fit", fix,
        )  # fmt: skip
    where = "above 4 GiB" if (largest.start or 0) >= _4G else "below 4 GiB, and small"
    return Finding(name, card.device, Status.PASS, f"{found} {where}", "")


def resizable(machine: Machine) -> list[Finding]:
    """The large BAR covers the card's memory, where the card can do that."""
    return [_resizable(machine, card) for card in rig.cards(machine)]


def _resizable(machine: Machine, card: rig.Card) -> Finding:
    name = "resizable-bar"
    bars = bars_of(machine, card) or []
    now = max((bar.size_bytes for bar in bars), default=None)
    bar1_mib = card.number("bar1_memory_usage/total")
    if bar1_mib is not None:
        now = int(bar1_mib * _MIB)
    memory_mib = card.number("fb_memory_usage/total")
    if now is None:
        return Finding(
            name, card.device, Status.UNKNOWN, "not shown", "",
            "neither sysfs nor nvidia-smi shows the card's windows",
        )  # fmt: skip
    if memory_mib is not None and now >= memory_mib * _MIB:
        return Finding(
            name, card.device, Status.PASS, _size(now), f"{_size(int(memory_mib * _MIB))} of memory"
        )
    possible = _largest_possible(machine, card, bars)
    if possible is not None:
        if possible <= now:
            return Finding(name, card.device, Status.PASS, _size(now), _size(possible))
        return Finding(
            name, card.device, Status.WARN, _size(now), _size(possible),
            "the card could show more of its memory at once; copies from the host are slower",
            "enable Resizable BAR (needs Above 4G Decoding) in the BIOS",
        )  # fmt: skip
    architecture = card.text("product_architecture")
    if architecture in _WITHOUT_RESIZABLE:
        return Finding(
            name, card.device, Status.PASS, _size(now), "",
            f"{architecture} cards have no resizable BAR",
        )  # fmt: skip
    return Finding(
        name, card.device, Status.UNKNOWN, _size(now), "",
        "the kernel does not show which sizes the card offers (older than 6.1, or none)",
        f"lspci -vv -s {card.address} (as root), Physical Resizable BAR",
    )  # fmt: skip


def _largest_possible(machine: Machine, card: rig.Card, bars: list[Bar]) -> int | None:
    sizes = []
    for bar in bars:
        text = (
            None
            if card.folder is None
            else machine.read(card.folder / f"resource{bar.index}_resize")
        )
        try:
            mask = int(text or "", 16)
        except ValueError:
            continue
        if mask:
            sizes.append(_MIB << (mask.bit_length() - 1))
    return max(sizes, default=None)


def _size(size_bytes: int) -> str:
    mib = size_bytes / _MIB
    return f"{mib / 1024:g} GiB" if mib >= 1024 else f"{mib:g} MiB"
