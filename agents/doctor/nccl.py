"""``rigcanary doctor nccl``: the NCCL environment for what the rig has, and why.

Only what was seen leads to a variable; NCCL's own choice is left alone where nothing speaks
against it. Variables as in NVIDIA's NCCL documentation, "Environment Variables".
"""

import re
import shlex
import shutil
from dataclasses import dataclass
from typing import Any, Final

from agents.doctor import cards as rig
from agents.doctor.machine import Machine

_VIRTUAL: Final = re.compile(
    r"(lo$|docker|veth|br-|virbr|tun|tap|wg|cni|flannel|cali|kube|lxc|lxd|podman|dummy|ifb|sit|"
    r"bonding_masters)"
)
_SHM: Final = "/dev/shm"  # noqa: S108  # only its size is read
_SHM_BYTES: Final = 1 << 30
"""Containers often have 64 MB of /dev/shm, too little for NCCL's buffers of several cards."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable and the reason for it."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Variables to set, and what cannot be set by a variable or is not known."""

    variables: list[Variable]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """The object that ``rigcanary doctor nccl --json`` prints."""
        return {
            "environment": {v.name: v.value for v in self.variables},
            "reasons": {v.name: v.reason for v in self.variables},
            "notes": self.notes,
        }

    def as_shell(self) -> str:
        """``export`` lines that a shell can read, each with its reason as a comment."""
        lines = []
        for variable in self.variables:
            lines += [
                f"# {variable.reason}",
                f"export {variable.name}={shlex.quote(variable.value)}",
            ]
        lines += [f"# note: {note}" for note in self.notes]
        return "\n".join(lines)


def advise(machine: Machine) -> Advice:
    """What NCCL should be told on this rig."""
    variables: list[Variable] = []
    notes: list[str] = []
    cards = rig.of_vendor(machine, rig.NVIDIA)
    if not cards:
        notes.append(
            "no NVIDIA card was found: NCCL has nothing to do here; "
            + (machine.run(*rig.NVIDIA_SMI).problem or "nvidia-smi lists no card")
        )
    if len(cards) > 1:
        _between_cards(machine, cards, variables, notes)
    _network(machine, variables, notes)
    variables.append(
        Variable("NCCL_DEBUG", "WARN", "says why a collective failed; costs nothing until then")
    )
    return Advice(variables, notes)


def _between_cards(
    machine: Machine, cards: list[rig.Card], variables: list[Variable], notes: list[str]
) -> None:
    links = matrix(machine.run("nvidia-smi", "topo", "-m").good)
    peers = matrix(machine.run("nvidia-smi", "topo", "-p2p", "r").good)
    bridged = [link for link in links if link.startswith("NV")]
    refused = sorted({peer for peer in peers if peer != "OK"})
    consumer = [card.model for card in cards if "GeForce" in card.model]
    if bridged and (refused or len(bridged) < len(links)):
        variables.append(
            Variable(
                "NCCL_P2P_LEVEL",
                "NVL",
                f"{len(bridged) // 2} of {len(links) // 2} pairs have NVLink; the others go "
                "through host memory",
            )
        )
    elif bridged:
        notes.append("every pair has NVLink: P2P is left to NCCL")
    elif refused:
        variables.append(
            Variable(
                "NCCL_P2P_DISABLE",
                "1",
                f"no NVLink, and the driver refuses peer access over PCIe ({', '.join(refused)}); "
                "cards exchange through host memory",
            )
        )
    elif peers:
        notes.append("the driver allows peer access between all cards: P2P is left to NCCL")
    elif consumer:
        variables.append(
            Variable(
                "NCCL_P2P_DISABLE",
                "1",
                f"{consumer[0]}: the driver gives GeForce cards without NVLink no peer access "
                "over PCIe, and this one does not say otherwise",
            )
        )
    else:
        notes.append("nvidia-smi topo gives no answer: P2P is left to NCCL")
    if "SYS" in links:
        notes.append(
            "some cards hang on different CPU sockets (SYS): bind each process to its card's node "
            "(numactl --cpunodebind)"
        )
    narrow = [c.address for c in cards if (c.number(_WIDTH) or 16) < 4]
    if narrow:
        notes.append(
            f"narrow links ({', '.join(narrow)}): the slowest card sets the pace of every "
            "all-reduce; compress gradients or train without it"
        )
    _shared_memory(machine, notes)


_WIDTH: Final = "pci/pci_gpu_link_info/link_widths/current_link_width"


def _shared_memory(machine: Machine, notes: list[str]) -> None:
    try:
        total = shutil.disk_usage(machine.path(_SHM)).total
    except OSError:
        return
    if total < _SHM_BYTES:
        notes.append(
            f"{_SHM} holds {total >> 20} MiB only: give the container --shm-size=1g or more "
            "(NCCL exchanges between cards through it)"
        )


def matrix(text: str | None) -> list[str]:
    """Off-diagonal cells of ``nvidia-smi topo``'s table, GPUs against GPUs."""
    cells: list[str] = []
    # In a terminal's colours the heading is underlined.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text or "")
    lines = [line.split() for line in plain.splitlines() if "GPU" in line]
    gpus = 0
    for words in lines:
        if words and words[0].startswith("GPU") and words[1:2] and words[1].startswith("GPU"):
            gpus = sum(1 for word in words if re.fullmatch(r"GPU\d+", word))
        elif words and re.fullmatch(r"GPU\d+", words[0]):
            cells += [word for word in words[1 : 1 + gpus] if word != "X"]
    if gpus == 0:
        return []
    return cells


def _network(machine: Machine, variables: list[Variable], notes: list[str]) -> None:
    if not machine.entries("/sys/class/infiniband"):
        variables.append(
            Variable("NCCL_IB_DISABLE", "1", "no InfiniBand or RoCE adapter: do not search for one")
        )
    else:
        notes.append("an InfiniBand or RoCE adapter is there: NCCL finds it by itself")
    speeds = {
        folder.name: max(int(rig.leading_number(machine.read(folder / "speed")) or 0), 0)
        for folder in machine.entries("/sys/class/net")
        if not _VIRTUAL.match(folder.name) and machine.read(folder / "operstate") != "down"
    }
    if not speeds:
        notes.append("no network interface is up: training stays on this rig")
        return
    fastest = max(speeds.values())
    chosen = [name for name, speed in sorted(speeds.items()) if speed == fastest]
    rate = f"{fastest} Mb/s" if fastest else "of unknown speed"
    others = sorted(set(speeds) - set(chosen))
    reason = f"{', '.join(chosen)}: {rate}"
    if others:
        reason += f"; slower: {', '.join(others)}"
    variables.append(Variable("NCCL_SOCKET_IFNAME", "=" + ",".join(chosen), reason))
    if 0 < fastest < 10_000:
        notes.append(
            f"{rate} between rigs: gradients of a large model take longer than the step; compress "
            "them"
        )
