"""The source ``nvidia_smi``: the XML of ``nvidia-smi -q -x``, of the tool or of a recording.

For rigs where Python cannot load NVML, and for captures. Schemas differ between drivers (v10 to
v13 name the power and ECC fields differently); a field is looked up under all its names.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from contract.errors import ConfigError

COMMAND: Final = ("nvidia-smi", "-q", "-x")
TIMEOUT_SECONDS: Final = 10.0
_LOST: Final = ("gpu is lost", "unknown error", "gpu has fallen off the bus")


class NvidiaSmiSource:
    """Runs ``nvidia-smi`` at each read, or reads the file that ``input`` names."""

    name = "nvidia_smi"
    enumerates = True

    def __init__(self, settings: AgentSettings) -> None:
        self._input = settings.input
        if self._input is not None and not self._input.is_file():
            raise ConfigError(f"--input {self._input}: there is no such file")

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._input is not None:
            return parse(_read_file(self._input))
        try:
            done = subprocess.run(
                COMMAND, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except FileNotFoundError as error:
            raise NotHere("the program nvidia-smi is not installed") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ReadFailed(f"nvidia-smi: {error}") from error
        return parse(done.stdout)

    def close(self) -> None:
        pass


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReadFailed(f"{path}: {error.strerror}") from error


def parse(xml: bytes) -> list[DeviceReading]:
    """The readings of all cards in the output of ``nvidia-smi -q -x``.

    Raises:
        ReadFailed: it is not that; when a card hangs, nvidia-smi prints a sentence instead.
    """
    try:
        # A local tool's output; expat itself limits the growth of entities.
        root = ET.fromstring(xml)  # noqa: S314
    except ET.ParseError as error:
        said = xml.decode(errors="replace").strip().splitlines()
        raise ReadFailed(
            f"nvidia-smi gave no XML ({error}): {said[0][:200] if said else 'nothing'}"
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
    for key, value in (("model", _text(gpu, "product_name")), ("driver", driver)):
        if value is not None:
            identity[key] = value
    said = (gpu.findtext("temperature/gpu_temp") or "").strip(" []").lower()
    if said.startswith(_LOST):
        return {**identity, "state": "lost"}
    pcie = "pci/pci_gpu_link_info/link_widths"
    corrected, uncorrected = _ecc(gpu.find("ecc_errors/volatile"))
    return {
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
