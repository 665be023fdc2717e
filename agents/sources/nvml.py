"""The source ``nvml``: NVIDIA cards through the driver's management library.

What a card supports is found once: a field that answers "not supported" is null from then on.
A missing library or an unloaded driver is "not here" and is tried again at every tick, so that a
driver can be reloaded under a running agent.

Units of NVML (nvml.h): power in mW, fan speed and utilisation in percent (fan: the intended
speed, hence the duty; rpm is a call of its own), temperatures in °C.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from contract.errors import ConfigError

Read = Callable[[Any, Any], float | None]
"""(pynvml, device handle) → value in base units, None where there is none at the moment."""


def _temperature(nvml: Any, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError as error:
        # CUDA 14 drops this call for a versioned one, which older drivers do not have.
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))


def _memory_temperature(nvml: Any, handle: Any) -> float | None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    # Cards without the sensor may answer 0 instead of "not supported"; nothing that runs has it.
    return float(value.value.uiVal) or None


def _ecc(nvml: Any, handle: Any, kind: int) -> float:
    # Volatile: counted since the driver was loaded, which is the epoch of the contract.
    return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))


READS: Final[dict[str, Read]] = {
    "temperature_celsius": _temperature,
    "memory_temperature_celsius": _memory_temperature,
    "ecc_corrected_total": lambda n, h: _ecc(n, h, n.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "ecc_uncorrected_total": lambda n, h: _ecc(n, h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "fan_speed_rpm": lambda n, h: n.nvmlDeviceGetFanSpeedRPM(h),
    "fan_duty_ratio": lambda n, h: n.nvmlDeviceGetFanSpeed(h) / 100,
    "power_watts": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,
    "utilization_ratio": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,
    "pcie_link_width": lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h),
    "pcie_link_width_max": lambda n, h: n.nvmlDeviceGetMaxPcieLinkWidth(h),
}


@dataclass(slots=True)
class _Card:
    handle: Any
    identity: DeviceReading
    fields: dict[str, Read] = field(default_factory=lambda: dict(READS))


class NvmlSource:
    """Reads every NVIDIA card that the driver enumerates."""

    name = "nvml"
    enumerates = True

    def __init__(self, settings: AgentSettings, nvml: Any = None) -> None:
        if settings.input is not None:
            raise ConfigError("the source nvml reads the driver; --input goes with nvidia_smi")
        self._nvml = nvml
        self._ready = False
        self._cards: list[_Card] | None = None
        self._known: dict[int, DeviceReading] = {}

    def read(self, now: Instant) -> list[DeviceReading]:
        nvml = self._library()
        try:
            if not self._ready:
                nvml.nvmlInit()
                self._ready, self._cards = True, None
            if self._cards is None or nvml.nvmlDeviceGetCount() != len(self._cards):
                self._cards = self._enumerate(nvml)
            return [self._read_card(nvml, card) for card in self._cards]
        except nvml.NVMLError as error:
            self.close()
            gone = (
                nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
                nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                nvml.NVML_ERROR_UNINITIALIZED,
                nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            )
            if error.value in gone:
                raise NotHere(f"NVML: {error}; is the NVIDIA driver installed?") from error
            raise ReadFailed(f"NVML: {error}") from error

    def close(self) -> None:
        if not self._ready:
            return
        self._ready = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            # The driver went away first, and there is nothing left to give up.
            return

    def _library(self) -> Any:
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ModuleNotFoundError as error:
                raise NotHere("the Python package nvidia-ml-py is not installed") from error
        return self._nvml

    def _enumerate(self, nvml: Any) -> list[_Card]:
        driver = nvml.nvmlSystemGetDriverVersion()
        cards = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle: Any = None
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                self._known[index] = {
                    "device": nvml.nvmlDeviceGetUUID(handle),
                    "index": index,
                    "vendor": "nvidia",
                    "model": nvml.nvmlDeviceGetName(handle),
                    "driver": driver,
                }
            except nvml.NVMLError as error:
                if error.value not in _lost(nvml):
                    raise
                # Lost before it was ever seen: it has no name but its place.
                unnamed = {"device": f"nvidia-{index}", "index": index, "vendor": "nvidia"}
                self._known.setdefault(index, unnamed)
            cards.append(_Card(handle, self._known[index]))
        return cards

    def _read_card(self, nvml: Any, card: _Card) -> DeviceReading:
        reading: DeviceReading = {**card.identity, "state": "ok"}
        if card.handle is None:
            # Drop the list, so that the next tick looks for the card again.
            self._cards = None
            return {**reading, "state": "lost"}
        failed = 0
        for name, read in list(card.fields.items()):
            try:
                reading[name] = read(nvml, card.handle)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    return {**card.identity, "state": "lost"}
                if error.value in (
                    nvml.NVML_ERROR_UNINITIALIZED,
                    nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                ):
                    raise
                if error.value in _unsupported(nvml):
                    del card.fields[name]
                else:
                    failed += error.value == nvml.NVML_ERROR_UNKNOWN
                reading[name] = None
        if failed and failed == len(card.fields):
            # Nothing but "unknown error" is how a card that fell off the bus answers.
            return {**card.identity, "state": "lost"}
        return reading


def _lost(nvml: Any) -> tuple[int, ...]:
    return (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN)


def _unsupported(nvml: Any) -> tuple[int, ...]:
    return (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    )
