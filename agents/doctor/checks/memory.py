"""The card's memory: ECC, cells taken out of use, temperature."""

from typing import Final
from xml.etree import ElementTree as ET

from agents.doctor import boards
from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_MANY_PAGES: Final = 10
"""facebookresearch/gcm's default: more than 10 retired pages is a bad card."""

_GDDR6X: Final = ("3070 Ti", "3080", "3090", "4070", "4080", "4090")


def ecc(machine: Machine) -> list[Finding]:
    """Errors counted since the driver's start and over the card's life."""
    return [_ecc(card) for card in rig.of_vendor(machine, rig.NVIDIA)]


def _ecc(card: rig.Card) -> Finding:
    name = "ecc"
    mode = card.text("ecc_mode/current_ecc")
    if card.xml is None or mode is None:
        return Finding(
            name, card.device, Status.UNKNOWN, "no ECC" if card.xml is not None else "not shown",
            "",
            "memory errors of this card cannot be counted" if card.xml is not None
            else "nvidia-smi does not show the card",
            "test its memory under load before you trust it (e.g. gpu-burn, memtest_vulkan)",
        )  # fmt: skip
    if mode != "Enabled":
        return Finding(
            name, card.device, Status.WARN, "off", "on",
            "the card could count memory errors and was told not to",
            "nvidia-smi -e 1 (root), then reboot",
        )  # fmt: skip
    now, life = (counts(card.xml.find(f"ecc_errors/{part}")) for part in ("volatile", "aggregate"))
    found = (
        f"since start {now[0]:g} corrected, {now[1]:g} not; in its life {life[0]:g}, {life[1]:g}"
    )
    wanted = "0"
    if now[1]:
        return Finding(
            name, card.device, Status.FAIL, found, wanted,
            "uncorrected errors since the driver was loaded: data was lost",
            "take the card out of service; a reset may remap the row (see retired-memory)",
        )  # fmt: skip
    if life[1] or now[0] or life[0]:
        return Finding(
            name, card.device, Status.WARN, found, wanted,
            "the memory has had errors; a used card that never had any is the better buy",
            "test it under load and watch whether the counts rise",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, found, wanted)


def counts(part: ET.Element | None) -> tuple[float, float]:
    """(corrected, uncorrected) over all memories of one ``ecc_errors`` part."""
    if part is None:
        return 0.0, 0.0
    if part.find("single_bit") is not None:
        return (
            rig.leading_number(part.findtext("single_bit/total")) or 0.0,
            rig.leading_number(part.findtext("double_bit/total")) or 0.0,
        )
    corrected = uncorrected = 0.0
    for leaf in part:
        number = rig.leading_number(leaf.text) or 0.0
        if "uncorrectable" in leaf.tag:
            uncorrected += number
        elif leaf.tag.endswith("_correctable"):
            corrected += number
    return corrected, uncorrected


def retired(machine: Machine) -> list[Finding]:
    """Pages retired (to Volta and Turing) and rows remapped (from Ampere on)."""
    return [_retired(card) for card in rig.of_vendor(machine, rig.NVIDIA)]


def _retired(card: rig.Card) -> Finding:
    name = "retired-memory"
    pages = [
        card.number(f"retired_pages/{kind}/retired_count")
        for kind in ("multiple_single_bit_retirement", "double_bit_retirement")
    ]
    rows = [card.number(f"remapped_rows/remapped_row_{kind}") for kind in ("corr", "unc")]
    if all(value is None for value in (*pages, *rows)):
        return Finding(
            name, card.device, Status.UNKNOWN, "not shown", "0",
            "a card without ECC does not retire memory" if card.xml is not None
            else "nvidia-smi does not show the card",
        )  # fmt: skip
    parts = []
    if any(value is not None for value in pages):
        parts.append(f"{sum(value or 0 for value in pages):g} pages")
    if any(value is not None for value in rows):
        parts.append(f"{sum(value or 0 for value in rows):g} rows")
    found = ", ".join(parts)
    if card.text("remapped_rows/remapped_row_failure") == "Yes":
        return Finding(
            name, card.device, Status.FAIL, f"{found}; remapping failed", "0",
            "no spare rows are left: the next bad cell stays", "replace the card",
        )  # fmt: skip
    pending = (
        "retired_pages/pending_retirement",
        "retired_pages/pending_blacklist",
        "remapped_rows/remapped_row_pending",
    )
    if any(card.text(path) == "Yes" for path in pending):
        return Finding(
            name, card.device, Status.FAIL, f"{found}; more pending", "0",
            "bad memory is still in use until the card is reset",
            "stop its users and reset it (nvidia-smi -r, root), or reboot",
        )  # fmt: skip
    if sum(value or 0 for value in pages) > _MANY_PAGES:
        return Finding(
            name, card.device, Status.FAIL, found, f"at most {_MANY_PAGES} pages",
            "this many retired pages is a card at its end", "do not buy it; replace it",
        )  # fmt: skip
    if any((*pages, *rows)):
        return Finding(
            name, card.device, Status.WARN, found, "0",
            "cells have failed before and were taken out of use",
            "note the number and watch whether it rises",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, found, "0")


def temperature(machine: Machine) -> list[Finding]:
    """Temperature of the memory, where the card shows one."""
    return [
        _nvidia_temperature(card) if card.vendor == rig.NVIDIA else _tt_temperature(card)
        for card in rig.cards(machine)
    ]


def _nvidia_temperature(card: rig.Card) -> Finding:
    name = "memory-temperature"
    now = card.number("temperature/memory_temp")
    most = card.number("temperature/gpu_temp_max_mem_threshold")
    if now is None:
        hot = any(model in card.model for model in _GDDR6X)
        return Finding(
            name, card.device, Status.UNKNOWN, "not shown", "",
            "the driver gives none for this card"
            + (": GDDR6X runs hot and burns first, unseen" if hot else ""),
            "renew the memory's pads before trusting it; the agent sends null, never a guess"
            if hot else "",
        )  # fmt: skip
    found, wanted = f"{now:g} °C", "" if most is None else f"under {most:g} °C"
    return _judge(name, card, now, most, found, wanted)


def _tt_temperature(card: rig.Card) -> Finding:
    name = "memory-temperature"
    now = boards.gddr_celsius(card)
    if now is None:
        return Finding(
            name, card.device, Status.UNKNOWN, "not shown", "",
            "tt-smi gives no GDDR temperature for this board or its firmware",
        )  # fmt: skip
    return _judge(name, card, now, None, f"{now:g} °C", "")


def _judge(
    name: str, card: rig.Card, now: float, most: float | None, found: str, wanted: str
) -> Finding:
    if most is not None and now >= most:
        return Finding(
            name, card.device, Status.FAIL, found, wanted, "the memory is at its limit",
            "renew the pads, more air over the back of the board",
        )  # fmt: skip
    if most is not None and now >= most - 10:
        return Finding(
            name, card.device, Status.WARN, found, wanted, "less than 10 °C are left",
            "renew the pads, more air over the back of the board",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, found, wanted)
