"""The rig's accelerator cards: what the PCI bus shows and what the vendors' tools know of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import orjson

from agents.doctor.machine import Machine

NVIDIA: Final = "nvidia"
TENSTORRENT: Final = "tenstorrent"

_VENDORS: Final = {"0x10de": NVIDIA, "0x1e52": TENSTORRENT}
"""PCI vendor ids (pci-ids.ucw.cz)."""

_DISPLAY_CLASSES: Final = ("0x0300", "0x0302")
"""VGA and 3D controllers; an NVIDIA card's audio and USB functions are no cards."""

_ADDRESS: Final = re.compile(r"([0-9a-f]{4}:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$", re.IGNORECASE)

TT_SMI: Final = ("tt-smi", "-s")
TT_SMI_DEADLINE_SECONDS: Final = 20.0
"""tt-smi can hang for minutes on a board whose ARC is dead (tt-smi#85, #185)."""

_LOST: Final = ("gpu is lost", "unknown error", "gpu has fallen off the bus")

NVIDIA_SMI: Final = ("nvidia-smi", "-q", "-x")


@dataclass(frozen=True, slots=True)
class Card:
    """A card. ``folder`` is its sysfs folder (None where sysfs does not show it), ``xml`` its
    part of ``nvidia-smi -q -x``, ``board`` its part of ``tt-smi -s``.
    """

    device: str
    address: str
    vendor: str
    model: str
    folder: Path | None = None
    xml: ET.Element | None = None
    board: dict[str, Any] | None = None

    def text(self, path: str) -> str | None:
        """The value at ``path`` of nvidia-smi's XML; None where the card does not support it."""
        if self.xml is None:
            return None
        text = (self.xml.findtext(path) or "").strip().strip("[]")
        refused = ("n/a", "not supported", "requested functionality", "unknown error", "gpu is")
        return None if not text or text.lower().startswith(refused) else text

    def number(self, path: str) -> float | None:
        """The number before the unit at ``path`` of nvidia-smi's XML: ``31 C``, ``16x``."""
        return leading_number(self.text(path))

    @property
    def lost(self) -> bool:
        """Whether the driver says that the card is gone (NVML's GPU_IS_LOST, unknown error)."""
        said = "" if self.xml is None else self.xml.findtext("temperature/gpu_temp") or ""
        return said.strip(" []\n\t").lower().startswith(_LOST)

    @property
    def loaded(self) -> bool | None:
        """Whether the card works now; None where nothing tells. Idle links run slower."""
        busy = self.number("utilization/gpu_util")
        return None if busy is None else busy >= 10


def leading_number(text: str | None) -> float | None:
    """``31 C`` → 31.0; None where no number leads."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", text or "")
    return float(found[1]) if found else None


def nvidia_log(machine: Machine) -> ET.Element | None:
    """The parsed ``nvidia-smi -q -x``; None where it did not give that."""
    text = machine.run(*NVIDIA_SMI).good
    if text is None or "<nvidia_smi_log" not in text:
        return None
    # stderr is in the same text, and the DOCTYPE names a file that is not there.
    end = "</nvidia_smi_log>"
    body = text[text.index("<nvidia_smi_log") : text.rfind(end) + len(end)]
    try:
        return ET.fromstring(body)  # noqa: S314  # a local tool's output
    except ET.ParseError:
        return None


def tt_boards(machine: Machine) -> list[dict[str, Any]] | None:
    """``device_info`` of ``tt-smi -s``; None where it did not give that."""
    text = machine.run(*TT_SMI, deadline_seconds=TT_SMI_DEADLINE_SECONDS).good
    if text is None or "{" not in text:
        return None
    try:
        snapshot = orjson.loads(text[text.index("{") : text.rindex("}") + 1])
    except (orjson.JSONDecodeError, ValueError):
        return None
    boards = snapshot.get("device_info") if isinstance(snapshot, dict) else None
    return [b for b in boards if isinstance(b, dict)] if isinstance(boards, list) else None


def field_of(board: dict[str, Any] | None, part: str, name: str) -> str | None:
    """A value of one board of tt-smi's snapshot, without its padding; None where it is missing."""
    inner = (board or {}).get(part)
    value = inner.get(name) if isinstance(inner, dict) else None
    text = "" if value is None else str(value).strip()
    return text if text and text != "N/A" else None


def pci_address(text: str | None) -> str | None:
    """``00000000:0C:00.0`` → ``0000:0c:00.0``."""
    found = _ADDRESS.search((text or "").strip())
    return f"{(found[1] or '0000:').lower()}{found[2].lower()}" if found else None


def cards(machine: Machine) -> list[Card]:
    """All NVIDIA and Tenstorrent cards that sysfs or a vendor's tool shows, by PCI address."""
    seen: dict[str, tuple[str, Path | None]] = {
        address: (vendor, folder) for address, vendor, folder in _on_the_bus(machine)
    }
    xml, boards = {}, {}
    log = nvidia_log(machine)
    for gpu in [] if log is None else log.iter("gpu"):
        address = pci_address(gpu.findtext("pci/pci_bus_id") or gpu.get("id"))
        if address:
            xml[address] = gpu
            seen.setdefault(address, (NVIDIA, None))
    # tt-smi opens every board: it is asked only where there is one.
    if any(vendor == TENSTORRENT for vendor, _ in seen.values()) or not seen:
        for board in tt_boards(machine) or []:
            address = pci_address(field_of(board, "board_info", "bus_id"))
            if address:
                boards[address] = board
                seen.setdefault(address, (TENSTORRENT, None))
    return [
        _card(machine, address, vendor, folder, xml.get(address), boards.get(address))
        for address, (vendor, folder) in sorted(seen.items())
    ]


def of_vendor(machine: Machine, vendor: str) -> list[Card]:
    """The cards of one vendor."""
    return [card for card in cards(machine) if card.vendor == vendor]


def _on_the_bus(machine: Machine) -> list[tuple[str, str, Path]]:
    found = []
    for folder in machine.entries("/sys/bus/pci/devices"):
        vendor = _VENDORS.get(machine.read(folder / "vendor") or "")
        kind = machine.read(folder / "class") or ""
        if vendor == TENSTORRENT or (vendor == NVIDIA and kind.startswith(_DISPLAY_CLASSES)):
            found.append((folder.name.lower(), vendor, folder))
    return found


def _card(
    machine: Machine,
    address: str,
    vendor: str,
    folder: Path | None,
    xml: ET.Element | None,
    board: dict[str, Any] | None,
) -> Card:
    if vendor == NVIDIA:
        uuid = None if xml is None else (xml.findtext("uuid") or "").strip()
        model = None if xml is None else (xml.findtext("product_name") or "").strip()
        return Card(uuid or address, address, vendor, model or "NVIDIA card", folder, xml)
    klass = tt_class_folder(machine, address)
    kind = machine.read(klass / "tt_card_type") if klass else None
    kind = kind or (field_of(board, "board_info", "board_type") or "").split(" ")[0]
    return Card(address, address, vendor, kind or "Tenstorrent card", folder, board=board)


def tt_class_folder(machine: Machine, address: str) -> Path | None:
    """tt-kmd's sysfs folder of the card (``tenstorrent!N``); None where the driver has none."""
    for folder in machine.entries("/sys/class/tenstorrent"):
        try:
            target = (folder / "device").resolve().name
        except OSError:
            continue
        if target == address:
            return folder
    return None
