"""A rig made of files and recorded answers, for the doctor's tests."""

import os
from collections.abc import Mapping
from pathlib import Path

from agents.doctor.machine import Answer, Machine

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "device_outputs"
"""Recordings of real devices, read in place; tests skip where they are not."""

NVIDIA_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>550.54.15</driver_version>{gpus}</nvidia_smi_log>
"""


def gpu(address: str = "00000000:01:00.0", **values: str) -> str:
    """A card's part of ``nvidia-smi -q -x``: ``path__leaf=value`` for a nested value."""
    tree: dict[str, object] = {}
    given = {"uuid": f"GPU-{address}", "product_name": "NVIDIA GeForce RTX 3090"}
    for path, value in {**given, "pci__pci_bus_id": address, **values}.items():
        node = tree
        *inner, leaf = path.split("__")
        for name in inner:
            node = node.setdefault(name, {})  # type: ignore[assignment]
        node[leaf] = value
    return f'<gpu id="{address}">{_xml(tree)}</gpu>'


def _xml(tree: Mapping[str, object]) -> str:
    return "".join(f"<{k}>{_xml(v) if isinstance(v, dict) else v}</{k}>" for k, v in tree.items())


class FakeRig:
    """Builds files under ``root`` and says what tools print."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools: dict[str, Answer] = {}
        self.runs: list[tuple[str, ...]] = []
        self.environment: dict[str, str] = {}
        self.pauses: list[float] = []

    def file(self, path: str, text: str) -> "FakeRig":
        full = self.root / path.lstrip("/")
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)
        return self

    def says(self, command: str, text: str, problem: str | None = None) -> "FakeRig":
        """What the tool called as ``command`` (its words joined by blanks) prints."""
        self.tools[command] = Answer(text, problem)
        return self

    def nvidia(self, *gpus: str) -> "FakeRig":
        return self.says("nvidia-smi -q -x", NVIDIA_XML.format(gpus="".join(gpus)))

    def pci(
        self, address: str = "0000:01:00.0", vendor: str = "0x10de", *,
        port: Mapping[str, str] = {},
        **files: str,
    ) -> "FakeRig":  # fmt: skip
        """A card on the bus, under a port of its own; ``files`` are its sysfs files."""
        bridge = f"/sys/devices/pci0000:00/0000:00:{address[5:7]}.0"
        kind = "0x120000" if vendor == "0x1e52" else "0x030000"
        for name, text in {"vendor": vendor, "class": kind, **files}.items():
            self.file(f"{bridge}/{address}/{name}", text + "\n")
        for name, text in port.items():
            self.file(f"{bridge}/{name}", text + "\n")
        link = self.root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.root / bridge.lstrip("/") / address, link.parent))
        return self

    def tenstorrent(
        self, address: str = "0000:01:00.0", number: int = 0, kind: str = "p150a", **files: str
    ) -> "FakeRig":
        """A board that tt-kmd took; ``files`` are in its class folder."""
        self.pci(address, "0x1e52")
        self.file("/sys/module/tenstorrent/version", "2.3.0\n")
        folder = f"/sys/class/tenstorrent/tenstorrent!{number}"
        for name, text in {"tt_card_type": kind, **files}.items():
            self.file(f"{folder}/{name}", text + "\n")
        device = self.root / folder.lstrip("/") / "device"
        target = (self.root / "sys/bus/pci/devices" / address).resolve()
        device.symlink_to(os.path.relpath(target, device.parent))
        return self

    def board_hwmon(self, address: str = "0000:01:00.0", **files: str) -> "FakeRig":
        folder = (self.root / "sys/bus/pci/devices" / address).resolve() / "hwmon" / "hwmon3"
        for name, text in files.items():
            self.file(str(folder.relative_to(self.root) / name), text + "\n")
        return self

    @property
    def machine(self) -> Machine:
        def tool(argv: tuple[str, ...], _: float, __: Mapping[str, str]) -> Answer:
            self.runs.append(argv)
            missing = Answer("", f"the tool {argv[0]} is not installed")
            return self.tools.get(" ".join(argv), missing)

        return Machine(self.root, tool, self.environment, uid=1000, pause=self.pauses.append)
