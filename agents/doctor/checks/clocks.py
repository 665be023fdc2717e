"""Clocks that somebody limited, and clocks that the card itself holds back."""

from typing import Final

from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_SECTIONS: Final = (
    ("clocks_event_reasons", "clocks_event_reason_"),
    ("clocks_throttle_reasons", "clocks_throttle_reason_"),
)
"""Newer drivers' name and the older one."""

_BAD: Final = {
    "hw_thermal_slowdown": "the card is too hot and cuts its clocks",
    "hw_power_brake_slowdown": "the supply or the board asked the card to stop drawing power",
}


def reason(card: rig.Card, name: str) -> bool | None:
    """Whether the clocks are held back by ``name``; None where the driver does not say."""
    for section, prefix in _SECTIONS:
        text = card.text(f"{section}/{prefix}{name}")
        if text is not None:
            return text == "Active"
    return None


def limits(machine: Machine) -> list[Finding]:
    """Application clocks and locks that a former owner may have left."""
    return [_limits(card) for card in rig.of_vendor(machine, rig.NVIDIA)]


def _limits(card: rig.Card) -> Finding:
    name = "clocks"
    active = reason(card, "applications_clocks_setting")
    asked = card.number("applications_clocks/graphics_clock")
    stock = card.number("default_applications_clocks/graphics_clock")
    undo = "nvidia-smi -rac; nvidia-smi -rgc; nvidia-smi -rmc (root) give the defaults back"
    held = (
        "somebody holds the clocks; readings are steadier, but a fault that shows at full clocks "
        "stays hidden from a buyer's test"
    )
    if asked is not None and stock is not None and asked != stock:
        return Finding(
            name, card.device, Status.WARN, f"application clock {asked:g} MHz",
            f"{stock:g} MHz, the default", held, undo,
        )  # fmt: skip
    if active:
        now = card.number("clocks/graphics_clock")
        return Finding(
            name, card.device, Status.WARN,
            "held by a setting" + ("" if now is None else f" at {now:g} MHz"), "not locked",
            held, undo,
        )  # fmt: skip
    if active is False and card.loaded:
        return Finding(name, card.device, Status.PASS, "not locked", "not locked")
    return Finding(
        name, card.device, Status.UNKNOWN,
        "default application clocks" if asked is not None else "not shown", "not locked",
        "a lock (nvidia-smi -lgc) shows only while the card works"
        if active is False
        else "the driver does not say",
        "run it again while the card works" if active is False else "",
    )  # fmt: skip


def throttling(machine: Machine) -> list[Finding]:
    """The card holds its own clocks back for heat or power."""
    return [_throttling(card) for card in rig.of_vendor(machine, rig.NVIDIA)]


def _throttling(card: rig.Card) -> Finding:
    name = "throttling"
    temperature = card.number("temperature/gpu_temp")
    slow_at = card.number("temperature/gpu_temp_slow_threshold")
    found = "" if temperature is None else f"{temperature:g} °C"
    wanted = "" if slow_at is None else f"under {slow_at:g} °C"
    known = {name: reason(card, name) for name in (*_BAD, "hw_slowdown", "sw_thermal_slowdown")}
    if all(value is None for value in known.values()):
        return Finding(
            name, card.device, Status.UNKNOWN, found or "not shown", wanted,
            "the driver gives no throttle reasons",
        )  # fmt: skip
    for cause, why in _BAD.items():
        if known[cause]:
            return Finding(
                name, card.device, Status.FAIL, f"{cause} {found}".strip(), wanted, why,
                "clean the cooler, renew paste and pads, check the power cables and the supply",
            )  # fmt: skip
    if known["hw_slowdown"] or known["sw_thermal_slowdown"]:
        cause = "hw_slowdown" if known["hw_slowdown"] else "sw_thermal_slowdown"
        return Finding(
            name, card.device, Status.WARN, f"{cause} {found}".strip(), wanted,
            "the driver holds the clocks back", "more air, or a lower power limit (nvidia-smi -pl)",
        )  # fmt: skip
    if not card.loaded:
        return Finding(
            name, card.device, Status.PASS, f"no, idle at {found}" if found else "no, idle",
            wanted, "seen without load only",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, f"no, working at {found}".strip(), wanted)
