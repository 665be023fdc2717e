"""Old NVIDIA cards (to Pascal): Xorg's Coolbits, PowerMizer, and the voltage/frequency curve.

These cards cannot lock their clocks (``nvidia-smi -lgc`` needs Volta), so former owners set them
through Xorg. Coolbits bits: 4 fan control, 8 clock offsets, 16 overvoltage (NVIDIA's driver
README, appendix "X Config Options"). GPUPowerMizerMode: 0 adaptive, 1 maximum performance, 2 auto.
"""

import re
from typing import Final

from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_OLD: Final = ("Fermi", "Kepler", "Maxwell", "Pascal")
_CONFIG_FOLDERS: Final = ("/etc/X11/xorg.conf.d", "/usr/share/X11/xorg.conf.d")
_MODES: Final = {"0": "adaptive", "1": "maximum performance", "2": "auto"}
_SETTINGS: Final = ("nvidia-settings", "-t")


def old_cards(machine: Machine) -> list[rig.Card]:
    """NVIDIA cards to Pascal; drivers before 450 name no architecture and are old themselves."""
    return [
        card
        for card in rig.of_vendor(machine, rig.NVIDIA)
        if card.xml is not None and card.text("product_architecture") in (*_OLD, None)
    ]


def _config(machine: Machine) -> dict[str, str]:
    """Path → text of Xorg's configuration files, comments removed."""
    paths = ["/etc/X11/xorg.conf"]
    for folder in _CONFIG_FOLDERS:
        paths += [f"{folder}/{p.name}" for p in machine.entries(folder) if p.suffix == ".conf"]
    found = {}
    for path in paths:
        text = machine.read(path)
        if text is not None:
            found[path] = "\n".join(line.split("#")[0] for line in text.splitlines())
    return found


def coolbits(machine: Machine) -> list[Finding]:
    """Which overclocking controls Xorg's configuration unlocks."""
    if not old_cards(machine):
        return []
    name = "xorg-coolbits"
    files = _config(machine)
    if not files:
        return [
            Finding(
                name,
                None,
                Status.UNKNOWN,
                "no Xorg configuration",
                "",
                "fans and clocks of these cards are set through Xorg only, which is not set up",
            )
        ]
    for path, text in files.items():
        found = re.search(r'Option\s+"Coolbits"\s+"(\d+)"', text, re.IGNORECASE)
        if found:
            bits = int(found[1])
            unlocked = [
                what
                for bit, what in ((4, "fan"), (8, "clock offsets"), (16, "overvoltage"))
                if bits & bit
            ]
            shown = f"{bits} ({', '.join(unlocked) or 'nothing of interest'})"
            if bits & 24:
                return [
                    Finding(
                        name,
                        None,
                        Status.WARN,
                        shown,
                        "at most 4",
                        f"{path} unlocks clock offsets or voltage: the card may have been run "
                        "beyond its limits",
                        "see voltage-curve for offsets in force; set Coolbits to 4 or remove it",
                    )
                ]
            return [Finding(name, None, Status.PASS, shown, "at most 4")]
    return [Finding(name, None, Status.PASS, "not set", "at most 4", "the driver's own control")]


def powermizer(machine: Machine) -> list[Finding]:
    """How the driver picks the performance level of old cards."""
    if not old_cards(machine):
        return []
    name = "powermizer"
    for path, text in _config(machine).items():
        fixed = re.search(r"Power[Mm]izer(?:Enable|Default|Level)\w*=0x\w+", text)
        if fixed:
            return [
                Finding(
                    name,
                    None,
                    Status.WARN,
                    fixed[0],
                    "the driver's choice",
                    f"{path} fixes the performance level (RegistryDwords): steady, but a former "
                    "owner's choice",
                    f"remove RegistryDwords from {path} and restart Xorg",
                )
            ]
    mode, problem = _setting(machine, "GPUPowerMizerMode")
    if mode is None:
        return [Finding(name, None, Status.UNKNOWN, "not shown", "", problem)]
    return [
        Finding(name, None, Status.PASS, f"{_MODES.get(value, value)}", "")
        for value in sorted(set(mode))
    ]


def voltage_curve(machine: Machine) -> list[Finding]:
    """Whether the voltage/frequency curve is the stock one, or fixed at a point of it."""
    cards = old_cards(machine)
    if not cards:
        return []
    name = "voltage-curve"
    offsets, problem = _setting(machine, "GPUGraphicsClockOffsetAllPerformanceLevels")
    if offsets is None:
        offsets, problem = _setting(machine, "GPUGraphicsClockOffset")
    moved = [value for value in offsets or [] if value not in ("0", "")]
    if moved:
        return [
            Finding(
                name,
                None,
                Status.WARN,
                f"offset {', '.join(moved)} MHz",
                "no offset",
                "the curve is moved: at the same voltage the card runs faster than it was sold for",
                "nvidia-settings -a GPUGraphicsClockOffsetAllPerformanceLevels=0",
            )
        ]
    found = []
    for card in cards:
        asked = card.number("applications_clocks/graphics_clock")
        most = card.number("max_clocks/graphics_clock")
        if asked is not None and most is not None and asked < most:
            found.append(
                Finding(
                    name,
                    card.device,
                    Status.PASS,
                    f"held at {asked:g} MHz of {most:g}",
                    "",
                    "application clocks fix one point of the curve, so that power and ripple "
                    "compare over time",
                )
            )
        elif offsets is not None:
            found.append(Finding(name, card.device, Status.PASS, "stock curve", "no offset"))
        else:
            found.append(
                Finding(
                    name,
                    card.device,
                    Status.UNKNOWN,
                    "not shown",
                    "no offset",
                    problem,
                    "in a desktop session: nvidia-settings -q GPUGraphicsClockOffset",
                )
            )
    return found


def _setting(machine: Machine, name: str) -> tuple[list[str] | None, str]:
    """Values of an nvidia-settings attribute, or why there are none."""
    if not machine.environment.get("DISPLAY"):
        return None, "nvidia-settings needs a running Xorg (DISPLAY is not set)"
    answer = machine.run(*_SETTINGS, "-q", name)
    if answer.good is None:
        return None, answer.problem or ""
    values = re.findall(r"^-?\d+$", answer.good, re.MULTILINE)
    return (values, "") if values else (None, f"nvidia-settings does not know {name} here")
