"""Tenstorrent boards: driver, tool, heartbeat, cooling, tuning.

Facts: tt-kmd's docs/sysfs-attributes.md and telemetry.h; Tenstorrent's specifications of the
Blackhole boards (p100a and p150a have a fan, p150b is passive and needs forced air).
"""

from typing import Final

from agents.doctor import boards
from agents.doctor import cards as rig
from agents.doctor.checks import fans
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_BEATS: Final = 3
_BEAT_SECONDS: Final = 1.0
_HUNG: Final = 0xFFFFFFFF
"""All ones is what a read over a dead PCIe link gives (tt-metal#30055)."""

_CONFIG_FOLDERS: Final = (
    "/etc/modprobe.d", "/etc/sysctl.d", "/etc/tenstorrent", "/etc/tuned",
    "/etc/systemd/system.conf.d",
)  # fmt: skip


def kmd(machine: Machine) -> list[Finding]:
    """The kernel driver is loaded and took every card that is on the bus."""
    version = machine.read("/sys/module/tenstorrent/version")
    found = []
    for card in rig.of_vendor(machine, rig.TENSTORRENT):
        if rig.tt_class_folder(machine, card.address) is not None:
            found.append(Finding("tt-kmd", card.device, Status.PASS, version or "loaded", "loaded"))
        elif machine.path("/sys/module/tenstorrent").exists():
            found.append(
                Finding(
                    "tt-kmd",
                    card.device,
                    Status.FAIL,
                    f"{version or 'loaded'}, card not taken",
                    "the card in /sys/class/tenstorrent",
                    "the card is on the PCI bus but the driver could not start it",
                    "read the kernel log (root: dmesg) for tenstorrent lines; cold-start the rig",
                )
            )
        elif card.folder is None:
            found.append(
                Finding(
                    "tt-kmd",
                    card.device,
                    Status.UNKNOWN,
                    "sysfs not shown",
                    "loaded",
                    "only tt-smi shows this card",
                )
            )
        else:
            found.append(
                Finding(
                    "tt-kmd",
                    card.device,
                    Status.FAIL,
                    "not loaded",
                    "loaded",
                    "without tt-kmd nothing can be read from the card",
                    "install tt-kmd and load it: modprobe tenstorrent (root)",
                )
            )
    return found


def smi(machine: Machine) -> list[Finding]:
    """tt-smi answers with a snapshot that lists every card."""
    snapshot = rig.tt_boards(machine)
    if snapshot is None:
        answer = machine.run(*rig.TT_SMI, deadline_seconds=rig.TT_SMI_DEADLINE_SECONDS)
        missing = "not installed" in (answer.problem or "")
        return [
            Finding(
                "tt-smi",
                None,
                Status.UNKNOWN,
                "no snapshot",
                "a snapshot",
                answer.problem or "tt-smi -s printed something else than its JSON",
                "pip install tt-smi"
                if missing
                else "run tt-smi -s by hand; tt-smi -r resets a board (stop its users first)",
            )
        ]
    listed = {rig.pci_address(rig.field_of(board, "board_info", "bus_id")) for board in snapshot}
    absent = [
        card.address
        for card in rig.of_vendor(machine, rig.TENSTORRENT)
        if card.address not in listed
    ]
    if absent:
        return [
            Finding(
                "tt-smi",
                None,
                Status.WARN,
                f"{len(snapshot)} boards, not {', '.join(absent)}",
                "every board",
                "tt-smi skips a board that does not answer it",
                "reset the board (tt-smi -r); if it stays away, cold-start the rig",
            )
        ]
    return [Finding("tt-smi", None, Status.PASS, f"{len(snapshot)} boards", "every board")]


def heartbeat(machine: Machine) -> list[Finding]:
    """The board's management processor counts on; one that stands still has crashed."""
    cards = rig.of_vendor(machine, rig.TENSTORRENT)
    beats: dict[str, list[int | None]] = {card.device: [] for card in cards}
    for number in range(_BEATS):
        for card in cards:
            folder = rig.tt_class_folder(machine, card.address)
            text = None if folder is None else machine.read(folder / "tt_heartbeat")
            beats[card.device].append(boards.integer(text))
        if all(values[-1] is None for values in beats.values()):
            break
        if number < _BEATS - 1:
            machine.pause(_BEAT_SECONDS)
    return [_heartbeat(card, [b for b in beats[card.device] if b is not None]) for card in cards]


def _heartbeat(card: rig.Card, beats: list[int]) -> Finding:
    name = "tt-heartbeat"
    if len(beats) < _BEATS:
        return Finding(
            name, card.device, Status.UNKNOWN, "not shown", "counting",
            "tt-kmd shows no tt_heartbeat for this card (older driver or firmware)",
        )  # fmt: skip
    if len(set(beats)) == 1:
        stuck = "reads as all ones: gone from the bus" if beats[0] == _HUNG else "stands still"
        return Finding(
            name, card.device, Status.FAIL, f"{beats[0]}, {stuck}", "counting",
            "the board's ARC processor has crashed: its telemetry is frozen",
            "tt-smi -r (stop its users first); if that does not help, cold-start the rig",
        )  # fmt: skip
    return Finding(name, card.device, Status.PASS, "counting", "counting")


def thermal_trips(machine: Machine) -> list[Finding]:
    """How often the board cut itself off for heat since its last cold start."""
    found = []
    for card in rig.of_vendor(machine, rig.TENSTORRENT):
        folder = rig.tt_class_folder(machine, card.address)
        trips = boards.integer(machine.read(folder / "tt_therm_trip_count")) if folder else None
        trips = trips if trips is not None and trips != _HUNG else None
        if trips is None:
            found.append(
                Finding(
                    "tt-thermal-trips",
                    card.device,
                    Status.UNKNOWN,
                    "not shown",
                    "0",
                    "tt-kmd shows no tt_therm_trip_count for this card",
                )
            )
        elif trips:
            found.append(
                Finding(
                    "tt-thermal-trips",
                    card.device,
                    Status.FAIL,
                    str(trips),
                    "0",
                    "the board has shut down for heat since its last cold start",
                    "see tt-cooling; more air before it carries load again",
                )
            )
        else:
            found.append(Finding("tt-thermal-trips", card.device, Status.PASS, "0", "0"))
    return found


def cooling(machine: Machine) -> list[Finding]:
    """A board with a fan has it turning; a passive one stands in air that something moves."""
    return [_cooling(machine, card) for card in rig.of_vendor(machine, rig.TENSTORRENT)]


def _cooling(machine: Machine, card: rig.Card) -> Finding:
    name = "tt-cooling"
    if card.model in boards.ACTIVE_BOARDS:
        rpm = boards.board_fan_rpm(machine, card)
        wanted = "its own fan turning"
        if rpm is None:
            return Finding(
                name, card.device, Status.UNKNOWN, f"{card.model}, fan not shown", wanted,
                "neither hwmon nor tt-smi gives the fan's speed", "look at the fan",
            )  # fmt: skip
        if rpm == 0:
            return Finding(
                name, card.device, Status.FAIL, f"{card.model}, fan at 0 rpm", wanted,
                "this board is cooled by its own fan only", "check the fan's plug, replace the fan",
            )  # fmt: skip
        return Finding(name, card.device, Status.PASS, f"{card.model}, fan at {rpm:g} rpm", wanted)
    if card.model in boards.PASSIVE_BOARDS:
        wanted = "forced air through the chassis"
        turning = [fan for fan in fans.chassis_rpm(machine).values() if fan > 0]
        if turning:
            return Finding(
                name, card.device, Status.PASS,
                f"{card.model} passive, {len(turning)} chassis fans turn", wanted,
                "that the air goes through this board is yours to see",
            )  # fmt: skip
        return Finding(
            name, card.device, Status.WARN, f"{card.model} passive, no chassis fan seen", wanted,
            "this board has no fan; in a desktop case it throttles within minutes",
            "put it in a rack chassis or mount a duct with a fan (a p150a has its own)",
        )  # fmt: skip
    return Finding(
        name, card.device, Status.UNKNOWN, card.model, "",
        "how this board is cooled is known for p100a, p150a and p150b only",
    )  # fmt: skip


def performance_conf(machine: Machine) -> list[Finding]:
    """A file ``performance.conf`` in the places where tuning lies, and the governor in force."""
    files = [f"{folder}/performance.conf" for folder in _CONFIG_FOLDERS]
    # tuned keeps a profile as a folder of that name.
    files += [f"/etc/tuned/{profile.name}/performance.conf"
              for profile in machine.entries("/etc/tuned")]  # fmt: skip
    present = [path for path in files if machine.read(path) is not None]
    governors = {
        governor
        for folder in machine.entries("/sys/devices/system/cpu")
        if (governor := machine.read(folder / "cpufreq/scaling_governor")) is not None
    }
    found = "; ".join(
        [
            f"file {present[0]}" if present else "no performance.conf",
            f"governor {', '.join(sorted(governors))}" if governors else "governor not shown",
        ]
    )
    wanted = "governor performance"
    if governors == {"performance"}:
        return [Finding("performance-conf", None, Status.PASS, found, wanted)]
    if governors:
        return [
            Finding(
                "performance-conf",
                None,
                Status.WARN,
                found,
                wanted,
                "the host feeds the boards; a governor that saves power delays it"
                + (f", whatever {present[0]} says" if present else ""),
                "cpupower frequency-set -g performance (root)",
            )
        ]
    return [
        Finding(
            "performance-conf",
            None,
            Status.UNKNOWN,
            found,
            wanted,
            "the kernel shows no frequency governor (usual in a virtual machine)",
        )
    ]
