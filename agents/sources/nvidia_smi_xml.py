"""The XML of ``nvidia-smi -q -x`` → readings. Pure.

Schemas differ between drivers (v10 to v13 name the power, throttle and ECC fields differently); a
field is looked up under all its names.
"""

from collections.abc import Iterable
from typing import Final
from xml.etree import ElementTree as ET

from agents.plausible import SENTINEL
from agents.source import DeviceReading, ReadFailed
from agents.sources.nvml_fields import NO_MEASUREMENT, THROTTLE_REASONS

_LOST: Final = ("gpu is lost", "unknown error", "gpu has fallen off the bus", "gpu requires reset")
_THROTTLE_BITS: Final = {name: bit for bit, name in THROTTLE_REASONS.items()}


def says_lost(text: str) -> bool:
    """Whether nvidia-smi says with ``text`` that a card is gone."""
    return any(sign in text.lower() for sign in _LOST)


def parse(xml: bytes) -> list[DeviceReading]:
    """The readings of all cards in the output of ``nvidia-smi -q -x``.

    Raises:
        ReadFailed: it is not that; when a card hangs, nvidia-smi prints a sentence instead.
    """
    # What it has to say of a card that it cannot open may stand before the XML.
    xml = xml[max(0, xml.find(b"<?xml")) :]
    try:
        # A local tool's output; expat itself limits the growth of entities.
        root = ET.fromstring(xml)  # noqa: S314
    except ET.ParseError as error:
        said = xml.decode(errors="replace").strip().splitlines()
        raise ReadFailed(
            f"no XML of nvidia-smi -q -x ({error}): {said[0][:200] if said else 'nothing'}"
        ) from error
    if root.tag != "nvidia_smi_log":
        raise ReadFailed(f"the XML is a {root.tag!r}, not the output of nvidia-smi -q -x")
    driver = _text(root, "driver_version")
    return [_card(gpu, index, driver) for index, gpu in enumerate(root.iter("gpu"))]


def _card(gpu: ET.Element, index: int, driver: str | None) -> DeviceReading:
    identity: DeviceReading = {
        "device": _text(gpu, "uuid") or f"nvidia-{gpu.get('id', index)}",
        "index": index,
        "vendor": "nvidia",
    }
    for key, value in (
        ("model", _text(gpu, "product_name")),
        ("driver", driver),
        ("pci_address", gpu.get("id", "").lower() or None),
    ):
        if value is not None:
            identity[key] = value
    if says_lost(gpu.findtext("temperature/gpu_temp") or ""):
        return {**identity, "state": "lost"}
    pcie = "pci/pci_gpu_link_info/link_widths"
    corrected, uncorrected = _ecc(gpu.find("ecc_errors/volatile"))
    reading: DeviceReading = {
        **identity,
        "state": "ok",
        "temperature_celsius": _number(gpu, "temperature/gpu_temp"),
        "memory_temperature_celsius": _number(gpu, "temperature/memory_temp"),
        "ecc_corrected_total": corrected,
        "ecc_uncorrected_total": uncorrected,
        "fan_duty_ratio": _share(_number(gpu, "fan_speed")),
        "power_watts": _first(
            _number(gpu, f"{section}/{name}")
            for section in ("gpu_power_readings", "power_readings")
            for name in ("instant_power_draw", "power_draw", "average_power_draw")
        ),
        "utilization_ratio": _share(_number(gpu, "utilization/gpu_util")),
        "pcie_link_width": _number(gpu, f"{pcie}/current_link_width"),
        "pcie_link_width_max": _number(gpu, f"{pcie}/max_link_width"),
    }
    nulled = {n: SENTINEL for n, garbage in NO_MEASUREMENT.items() if reading[n] == garbage}
    if nulled:
        reading.update(dict.fromkeys(nulled))
        reading["nulled"] = nulled
    details = _details(gpu)
    if details:
        reading["details"] = details
    return reading


def _details(gpu: ET.Element) -> dict[str, float]:
    """What the contract has no name for, under the names of the source nvml."""
    generations = "pci/pci_gpu_link_info/pcie_gen"
    retired, rows = "retired_pages", "remapped_rows/remapped_row"
    corrected, uncorrected = _ecc(gpu.find("ecc_errors/aggregate"))
    found = {
        "sm_clock_hertz": _scaled(_number(gpu, "clocks/sm_clock"), 1e6),
        "memory_clock_hertz": _scaled(_number(gpu, "clocks/mem_clock"), 1e6),
        "throttle_reasons": _throttle(gpu),
        "pcie_replay_total": _number(gpu, "pci/replay_counter"),
        "pcie_link_generation": _number(gpu, f"{generations}/current_link_gen"),
        "pcie_link_generation_max": _number(gpu, f"{generations}/max_link_gen"),
        "ecc_corrected_aggregate_total": corrected,
        "ecc_uncorrected_aggregate_total": uncorrected,
        "retired_pages_corrected": _number(
            gpu, f"{retired}/multiple_single_bit_retirement/retired_count"
        ),
        "retired_pages_uncorrected": _number(gpu, f"{retired}/double_bit_retirement/retired_count"),
        "retired_pages_pending": _first(
            _yes(gpu, f"{retired}/{name}") for name in ("pending_retirement", "pending_blacklist")
        ),
        "remapped_rows_corrected": _number(gpu, f"{rows}_corr"),
        "remapped_rows_uncorrected": _number(gpu, f"{rows}_unc"),
        "remapped_rows_pending": _yes(gpu, f"{rows}_pending"),
        "remapped_rows_failed": _yes(gpu, f"{rows}_failure"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _throttle(gpu: ET.Element) -> float | None:
    """The bits that NVML would give; None where the card does not say."""
    mask, said = 0, False
    for kind in ("event", "throttle"):
        for leaf in gpu.findall(f"clocks_{kind}_reasons/*"):
            bit = _THROTTLE_BITS.get(leaf.tag.removeprefix(f"clocks_{kind}_reason_"))
            active = (leaf.text or "").strip()
            if bit is not None and active in ("Active", "Not Active"):
                said = True
                mask |= bit if active == "Active" else 0
    return mask if said else None


def _ecc(volatile: ET.Element | None) -> tuple[float | None, float | None]:
    """(corrected, uncorrected) since the driver was loaded, over all memories."""
    if volatile is None:
        return None, None
    if volatile.find("single_bit") is not None:
        return _number(volatile, "single_bit/total"), _number(volatile, "double_bit/total")
    corrected = [_number(volatile, leaf.tag) for leaf in volatile if "_correctable" in leaf.tag]
    uncorrected = [_number(volatile, leaf.tag) for leaf in volatile if "uncorrect" in leaf.tag]
    return _sum(corrected), _sum(uncorrected)


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _yes(element: ET.Element, path: str) -> float | None:
    return {"Yes": 1.0, "No": 0.0}.get((element.findtext(path) or "").strip())


def _text(element: ET.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return text if text and text.strip("[]") not in ("N/A", "Not Supported") else None


def _number(element: ET.Element, path: str) -> float | None:
    """The number before the unit: ``31 C``, ``16x``, ``22.78 W``; None for N/A and the like."""
    text = _text(element, path)
    if text is None:
        return None
    try:
        return float(text.split()[0].rstrip("x"))
    except ValueError:
        return None
