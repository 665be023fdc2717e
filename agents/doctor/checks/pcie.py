"""PCIe links: width, generation, error reports.

An idle link drops its generation to save power, which is no fault; it never drops its width
(NVML's own counterpart is ``device_current_link_gen``). A link that came up narrow stays narrow
until the next reset.
"""

from typing import Final

from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_GENERATIONS: Final = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "32.0": 5,
    "64.0": 6,
}
"""GT/s as sysfs writes them → PCIe generation."""

_RESEAT: Final = (
    "reseat the card, then try it without the riser or in another slot; check the BIOS's "
    "bifurcation of that slot"
)


def width(machine: Machine) -> list[Finding]:
    """Lanes now against what the card and the port above it can do together."""
    return [_width(machine, card) for card in rig.cards(machine)]


def _width(machine: Machine, card: rig.Card) -> Finding:
    name = "pcie-width"
    now, most, port = widths(machine, card)
    if now is None or most is None:
        return _unseen(name, card, "the link's width")
    if now >= most:
        return Finding(name, card.device, Status.PASS, f"x{now}", f"x{most}")
    if port is None:
        return Finding(
            name, card.device, Status.WARN, f"x{now}", f"x{most}",
            "the port's own width is not visible, so this may be a narrow slot or a bad contact",
            f"look the slot's width up in the board's manual; if it is x{most}: {_RESEAT}",
        )  # fmt: skip
    if now >= port:
        return Finding(
            name, card.device, Status.WARN, f"x{now}", f"x{most}",
            f"the slot has only {port} lanes; the link itself is complete",
            "no fault; for more bandwidth use a wider slot",
        )  # fmt: skip
    return Finding(
        name, card.device, Status.FAIL, f"x{now}", f"x{min(most, port)}",
        "card and slot can do more lanes than came up: a bad contact, riser, or damaged lane",
        _RESEAT,
    )  # fmt: skip


def widths(machine: Machine, card: rig.Card) -> tuple[int | None, int | None, int | None]:
    """(lanes now, lanes of the card, lanes of the port above it); None where it is not shown."""
    now = most = port = None
    if card.folder is not None:
        now = _lanes(machine.read(card.folder / "current_link_width"))
        most = _lanes(machine.read(card.folder / "max_link_width"))
        port = _lanes(machine.read(card.folder.resolve().parent / "max_link_width"))
    links = "pci/pci_gpu_link_info/link_widths"
    now = now or _lanes(card.text(f"{links}/current_link_width"))
    most = most or _lanes(card.text(f"{links}/max_link_width"))
    return now, most, port


def _lanes(text: str | None) -> int | None:
    number = rig.leading_number(text)
    # 0 and 255 are what the kernel says when it could not read the register.
    return int(number) if number is not None and 0 < number <= 32 else None


def generation(machine: Machine) -> list[Finding]:
    """Generation now against the possible one, which only a card under load shows."""
    return [_generation(machine, card) for card in rig.cards(machine)]


def _generation(machine: Machine, card: rig.Card) -> Finding:
    name = "pcie-generation"
    now, most = generations(machine, card)
    if now is None or most is None:
        return _unseen(name, card, "the link's generation")
    found, wanted = f"gen {now}", f"gen {most}"
    if now >= most:
        return Finding(name, card.device, Status.PASS, found, wanted)
    if card.loaded:
        return Finding(
            name, card.device, Status.WARN, found, wanted,
            "the card works and its link still runs slower than both ends can: a riser or a "
            "marginal contact that the link trained down for, or a BIOS setting",
            "check the BIOS's link speed of that slot; otherwise reseat or shorten the riser",
        )  # fmt: skip
    return Finding(
        name, card.device, Status.UNKNOWN, found, wanted,
        "the card is idle, and idle links slow down to save power"
        if card.loaded is False
        else "nothing tells whether the card is idle, and idle links slow down to save power",
        "run it again while the card works",
    )  # fmt: skip


def generations(machine: Machine, card: rig.Card) -> tuple[int | None, int | None]:
    """(generation now, best of card and port together)."""
    now = None
    bounds: list[int | None] = []
    if card.folder is not None:
        now = _speed(machine.read(card.folder / "current_link_speed"))
        bounds = [
            _speed(machine.read(card.folder / "max_link_speed")),
            _speed(machine.read(card.folder.resolve().parent / "max_link_speed")),
        ]
    gen = "pci/pci_gpu_link_info/pcie_gen"
    now = now or _whole(card.number(f"{gen}/current_link_gen"))
    # max_link_gen is already the best of card and host.
    bounds.append(_whole(card.number(f"{gen}/max_link_gen")))
    known = [bound for bound in bounds if bound]
    return now, min(known) if known else None


def _speed(text: str | None) -> int | None:
    return _GENERATIONS.get((text or "").split(" ")[0])


def _whole(number: float | None) -> int | None:
    return int(number) if number else None


def _unseen(name: str, card: rig.Card, what: str) -> Finding:
    return Finding(
        name, card.device, Status.UNKNOWN, "not shown", "",
        f"neither sysfs nor the vendor's tool shows {what} (usual in a virtual machine)",
        f"on the host: lspci -vv -s {card.address} (as root), lines LnkCap and LnkSta",
    )  # fmt: skip


def aer_mode(machine: Machine) -> list[Finding]:
    """Whether the kernel reports PCIe errors at all."""
    name = "aer-mode"
    line = machine.read("/proc/cmdline")
    if line is None:
        return [
            Finding(name, None, Status.UNKNOWN, "not shown", "", "/proc/cmdline cannot be read")
        ]
    words = line.split()
    off = [w for w in words if w.startswith("pci=") and "noaer" in w[4:].split(",")]
    if off:
        return [
            Finding(
                name,
                None,
                Status.WARN,
                off[0],
                "AER on",
                "the kernel was told not to report PCIe errors: somebody silenced them, and a "
                "failing riser stays unseen",
                "remove pci=noaer from the kernel's command line (root) and read the errors",
            )
        ]
    if any(
        machine.read(folder / "aer_dev_correctable") is not None
        for folder in machine.entries("/sys/bus/pci/devices")
    ):
        return [Finding(name, None, Status.PASS, "counted by the kernel", "AER on")]
    return [
        Finding(
            name,
            None,
            Status.UNKNOWN,
            "no device has AER counters",
            "AER on",
            "the firmware keeps AER to itself, the kernel is older than 4.19 or built without it, "
            "or this is a virtual machine",
            "enable AER in the BIOS; as a last resort boot with pcie_ports=native (root)",
        )
    ]


def aer_counters(machine: Machine) -> list[Finding]:
    """Errors since boot as seen by each card and by the port above it."""
    return [_aer(machine, card) for card in rig.cards(machine)]


def _aer(machine: Machine, card: rig.Card) -> Finding:
    name = "aer-counters"
    totals: dict[str, int] = {}
    if card.folder is not None:
        # A card's errors are often seen by its link partner only.
        for folder in (card.folder, card.folder.resolve().parent):
            for kind in ("correctable", "nonfatal", "fatal"):
                text = machine.read(folder / f"aer_dev_{kind}")
                total = _total(text)
                if total is not None:
                    totals[kind] = totals.get(kind, 0) + total
    if not totals:
        return Finding(
            name, card.device, Status.UNKNOWN, "no counters", "0",
            "the kernel counts no PCIe errors of this card (see aer-mode)",
            "read the kernel log for AER lines (root: dmesg)",
        )  # fmt: skip
    found = ", ".join(f"{count} {kind}" for kind, count in totals.items())
    if totals.get("nonfatal") or totals.get("fatal"):
        return Finding(
            name, card.device, Status.FAIL, found, "no uncorrectable ones",
            "data was lost on the link since boot",
            "reseat the card and its power cables, try another riser; then reboot and look again",
        )  # fmt: skip
    hours = (rig.leading_number(machine.read("/proc/uptime")) or 0) / 3600
    if totals.get("correctable", 0) > max(1.0, hours):
        return Finding(
            name, card.device, Status.WARN, found, "at most 1 an hour",
            f"corrected by a repeat, but more than one an hour ({hours:.1f} h since boot) is "
            "how a bad riser begins",
            "reseat, shorten or replace the riser, or set the slot one generation lower",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, found, "at most 1 an hour")


def _total(text: str | None) -> int | None:
    """The TOTAL_ERR_… line of an aer_dev_… file (Documentation/ABI, sysfs-bus-pci-devices-aer)."""
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0].startswith("TOTAL_ERR_") and words[1].isdigit():
            return int(words[1])
    return None


def replays(machine: Machine) -> list[Finding]:
    """Packets that had to be sent again, as the NVIDIA driver counts them since its reset."""
    found = []
    for card in rig.of_vendor(machine, rig.NVIDIA):
        number = card.number("pci/replay_counter")
        if number is None:
            status, text = Status.UNKNOWN, "not shown"
            reason, fix = "nvidia-smi does not give it", ""
        elif number > 0:
            status, text = Status.WARN, f"{number:g}"
            reason = "packets were sent again: a marginal link"
            fix = "reseat or shorten the riser; see whether it rises under load"
        else:
            status, text, reason, fix = Status.PASS, "0", "", ""
        found.append(Finding("pcie-replays", card.device, status, text, "0", reason, fix))
    return found
