"""What is asked of an NVIDIA card, and what NVML's answers mean. Stateless.

Units of NVML (nvml.h): power in mW, fan speed and utilisation in percent (fan: the intended
speed, hence the duty; rpm is a call of its own), temperatures in °C, clocks in MHz.
"""

from collections.abc import Callable
from typing import Any, Final

Read = Callable[[Any, Any], float | None]
"""(pynvml, device handle) → value in base units, None where there is none at the moment."""
ReadDetails = Callable[[Any, Any], dict[str, float]]
"""(pynvml, device handle) → numbers that the contract has no name for, by name with unit."""


def call(nvml: Any, name: str, *arguments: Any) -> Any:
    """Call ``name`` of the library; what an older pynvml lacks counts as a missing function."""
    function = getattr(nvml, name, None)
    if function is None:
        raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return function(*arguments)


def _temperature(nvml: Any, handle: Any) -> float:
    try:
        return float(call(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError as error:
        # CUDA 14 drops this call for a versioned one, which older drivers do not have.
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return float(call(nvml, "nvmlDeviceGetTemperatureV", handle, nvml.NVML_TEMPERATURE_GPU))


def _memory_temperature(nvml: Any, handle: Any) -> float | None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    # Cards without the sensor may answer 0 instead of "not supported"; nothing that runs has it.
    return float(value.value.uiVal) or None


def _ecc(nvml: Any, handle: Any, kind: int) -> float:
    # Volatile: counted since the driver was loaded, which is the epoch of the contract.
    return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))


SENSORS: Final[dict[str, Read]] = {
    "temperature_celsius": _temperature,
    "memory_temperature_celsius": _memory_temperature,
    "ecc_corrected_total": lambda n, h: _ecc(n, h, n.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "ecc_uncorrected_total": lambda n, h: _ecc(n, h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "fan_speed_rpm": lambda n, h: call(n, "nvmlDeviceGetFanSpeedRPM", h),
    "fan_duty_ratio": lambda n, h: n.nvmlDeviceGetFanSpeed(h) / 100,
    "power_watts": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,
    "utilization_ratio": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,
    "pcie_link_width": lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h),
    "pcie_link_width_max": lambda n, h: n.nvmlDeviceGetMaxPcieLinkWidth(h),
}
"""Sensors of the contract, asked at every read."""

NO_MEASUREMENT: Final[dict[str, float]] = {
    "temperature_celsius": 0.0,
    "power_watts": 0.0,
    "pcie_link_width": 0.0,
    "pcie_link_width_max": 0.0,
}
"""What a card that has nothing to say answers instead of an error: no card that runs is at 0 °C,
draws 0 mW or has a link of no lanes."""


def _clocks(nvml: Any, handle: Any) -> dict[str, float]:
    return {
        "sm_clock_hertz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
        "memory_clock_hertz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
    }


def _throttle(nvml: Any, handle: Any) -> dict[str, float]:
    try:
        mask = call(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    except nvml.NVMLError as error:
        # The name before driver 535.
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        mask = call(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return {"throttle_reasons": mask}


DETAILS: Final[dict[str, ReadDetails]] = {
    "clocks": _clocks,
    "throttle": _throttle,
    "pcie_replay": lambda n, h: {"pcie_replay_total": n.nvmlDeviceGetPcieReplayCounter(h)},
    "pcie_generation": lambda n, h: {
        "pcie_link_generation": n.nvmlDeviceGetCurrPcieLinkGeneration(h)
    },
}
"""Details (``agents.source``), asked at every read."""


def _aggregate_ecc(nvml: Any, handle: Any) -> dict[str, float]:
    kinds = {
        "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    }
    return {
        f"ecc_{name}_aggregate_total": nvml.nvmlDeviceGetTotalEccErrors(
            handle, kind, nvml.NVML_AGGREGATE_ECC
        )
        for name, kind in kinds.items()
    }


def _retired_pages(nvml: Any, handle: Any) -> dict[str, float]:
    single = nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS
    double = nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    return {
        "retired_pages_corrected": len(nvml.nvmlDeviceGetRetiredPages(handle, single)),
        "retired_pages_uncorrected": len(nvml.nvmlDeviceGetRetiredPages(handle, double)),
        "retired_pages_pending": nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle),
    }


def _remapped_rows(nvml: Any, handle: Any) -> dict[str, float]:
    names = ("corrected", "uncorrected", "pending", "failed")
    counts = call(nvml, "nvmlDeviceGetRemappedRows", handle)
    return {f"remapped_rows_{n}": count for n, count in zip(names, counts, strict=True)}


SLOW_DETAILS: Final[dict[str, ReadDetails]] = {
    "aggregate_ecc": _aggregate_ecc,
    "retired_pages": _retired_pages,
    "remapped_rows": _remapped_rows,
    "pcie_generation_max": lambda n, h: {
        "pcie_link_generation_max": n.nvmlDeviceGetMaxPcieLinkGeneration(h)
    },
}
"""Details that change rarely and cost more, asked once a minute."""

THROTTLE_REASONS: Final[dict[int, str]] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of ``throttle_reasons`` (nvml.h: nvmlClocksEventReason…), named as nvidia-smi does."""


class Codes:
    """NVML's error codes by what they mean for the agent; ``nvml`` is pynvml."""

    def __init__(self, nvml: Any) -> None:
        self.unsupported: Final = frozenset(
            (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                nvml.NVML_ERROR_DEPRECATED,
            )
        )
        self.lost: Final = frozenset(
            (
                nvml.NVML_ERROR_GPU_IS_LOST,
                nvml.NVML_ERROR_RESET_REQUIRED,
                nvml.NVML_ERROR_GPU_NOT_FOUND,
            )
        )
        """Said of one card: it is gone, whichever field was asked for."""
        self.vague: Final = frozenset((nvml.NVML_ERROR_UNKNOWN, nvml.NVML_ERROR_INVALID_ARGUMENT))
        """Lost when a card answers nothing else: fallen off the bus, or a handle to nothing."""
        self.no_driver: Final = frozenset(
            (
                nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
                nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                nvml.NVML_ERROR_UNINITIALIZED,
                nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            )
        )
        """Said of the driver as a whole; says nothing about the cards."""
        self.timeout: Final = nvml.NVML_ERROR_TIMEOUT
        self.mismatch: Final = nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        self.nothing_yet: Final = nvml.NVML_ERROR_NOT_FOUND
        self.unknown: Final = nvml.NVML_ERROR_UNKNOWN
