"""The NVIDIA driver, and whether a card is what its label says."""

import re
import sys
from typing import Final

from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_DEAD = re.compile(r"unable to determine the device handle|gpu is lost|fallen off", re.IGNORECASE)


def driver(machine: Machine) -> list[Finding]:
    """Kernel module, NVML and nvidia-smi are there and of one version."""
    name = "nvidia-driver"
    text = machine.read("/proc/driver/nvidia/version") or ""
    found = re.search(r"(?:Kernel Module.*?|for \S+ +)\s(\d+\.\d+(?:\.\d+)?)\s", text + " ")
    module = found[1] if found else None
    answer = machine.run(*rig.NVIDIA_SMI)
    if "version mismatch" in answer.text.lower():
        library = re.search(r"NVML library version: (\S+)", answer.text)
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                f"module {module or '?'}, NVML {library[1] if library else 'of another version'}",
                "one version",
                "the driver's packages were updated while the old kernel module is still loaded: "
                "NVML answers nobody, the agent included",
                "reboot, or stop all GPU users and reload the nvidia modules (root)",
            )
        ]
    dead = next((line for line in answer.text.splitlines() if _DEAD.search(line)), None)
    if dead is not None and answer.problem is not None:
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                dead.strip()[:160],
                "every card answers",
                "one dead card keeps nvidia-smi from answering for the others",
                "read the kernel log for Xid lines (root: dmesg); cold-start, reseat that card",
            )
        ]
    log = rig.nvidia_log(machine)
    if log is None:
        return [
            Finding(
                name,
                None,
                Status.UNKNOWN,
                f"module {module or 'not loaded'}",
                "a driver",
                answer.problem or "nvidia-smi printed something else than its XML",
                "install the NVIDIA driver with its tools"
                if "not installed" in (answer.problem or "")
                else "read the kernel log for NVRM and Xid lines (root: dmesg)",
            )
        ]
    version = (log.findtext("driver_version") or "?").strip()
    if module is not None and module != version:
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                f"module {module}, NVML {version}",
                "one version",
                "kernel module and NVML are of different versions",
                "reboot",
            )
        ]
    return [Finding(name, None, Status.PASS, version, "module and NVML of one version")]


NVML_PROBE: Final = (
    sys.executable,
    "-c",
    "import pynvml as n; n.nvmlInit(); "
    "print(n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetCount())",
)
"""In a child of its own: a call into a hung driver never returns, and a child can be killed."""


def nvml(machine: Machine) -> list[Finding]:
    """Python reaches NVML, which the agent's source ``nvml`` reads."""
    name, wanted = "nvml", "NVML from Python"
    answer = machine.run(*NVML_PROBE)
    if answer.good is not None:
        version, _, count = answer.good.strip().rpartition(" ")
        return [Finding(name, None, Status.PASS, f"{version}, {count} cards", wanted)]
    # Python's traceback ends with the error.
    said = (answer.text.strip().splitlines() or [answer.problem or ""])[-1]
    if "LibRmVersionMismatch" in said or "version mismatch" in said.lower():
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                "version mismatch",
                wanted,
                "library and kernel module are of different versions: the agent sees no card",
                "reboot, or stop all GPU users and reload the nvidia modules (root)",
            )
        ]
    missing = "No module named" in said
    return [
        Finding(
            name,
            None,
            Status.UNKNOWN,
            "not reached",
            wanted,
            said,
            "pip install 'rigcanary[agent]'"
            if missing
            else "the agent can read nvidia-smi instead: rigcanary agent --source nvidia_smi",
        )
    ]


def identity(machine: Machine) -> list[Finding]:
    """The driver knows the card by name, and cards of one model have one VBIOS."""
    cards = rig.of_vendor(machine, rig.NVIDIA)
    versions: dict[str, set[str]] = {}
    for card in cards:
        versions.setdefault(card.model, set()).add(card.text("vbios_version") or "?")
    found = []
    for card in cards:
        text = f"{card.model}, VBIOS {card.text('vbios_version') or '?'}"
        if card.xml is None:
            found.append(
                Finding(
                    "identity",
                    card.device,
                    Status.UNKNOWN,
                    "not shown",
                    "a model's name",
                    "nvidia-smi does not show the card",
                    f"lspci -nn -s {card.address}",
                )
            )
        elif card.model in ("Graphics Device", "NVIDIA Graphics Device"):
            found.append(
                Finding(
                    "identity",
                    card.device,
                    Status.WARN,
                    text,
                    "a model's name",
                    "the driver does not know this card: too new for it, an engineering sample, "
                    "or a VBIOS of another card was flashed",
                    f"compare lspci -nn -s {card.address} with the label on the board",
                )
            )
        elif len(versions[card.model]) > 1:
            found.append(
                Finding(
                    "identity",
                    card.device,
                    Status.WARN,
                    text,
                    "one VBIOS a model",
                    "cards of this model run different VBIOS versions: other makers, or one was "
                    "flashed (mining VBIOSes change power and memory timings)",
                    "compare with the maker's published VBIOS",
                )
            )
        else:
            found.append(Finding("identity", card.device, Status.PASS, text, ""))
    return found


def persistence(machine: Machine) -> list[Finding]:
    """The driver stays loaded between users."""
    found = []
    for card in rig.of_vendor(machine, rig.NVIDIA):
        mode = card.text("persistence_mode")
        if mode == "Enabled":
            found.append(Finding("persistence", card.device, Status.PASS, "on", "on"))
        elif mode == "Disabled":
            found.append(
                Finding(
                    "persistence",
                    card.device,
                    Status.WARN,
                    "off",
                    "on",
                    "without it the driver unloads when nobody uses the card: counters restart, "
                    "and each nvidia-smi takes seconds",
                    "systemctl enable --now nvidia-persistenced (root), or nvidia-smi -pm 1 (root)",
                )
            )
        else:
            found.append(
                Finding(
                    "persistence",
                    card.device,
                    Status.UNKNOWN,
                    "not shown",
                    "on",
                    "nvidia-smi does not give it",
                )
            )
    return found
