"""CPU time and memory of processes, sampled from outside."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import psutil

SAMPLE_SECONDS: Final = 1.0
_MB: Final = 1e6


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass(slots=True)
class Meter:
    """One sample a second of each process: wall time, CPU seconds, resident bytes."""

    processes: dict[str, psutil.Process]
    at: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    rss: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, pids: Mapping[str, int]) -> "Meter":
        """Watch these processes; none of them starts others."""
        names = dict(pids)
        return cls(
            {name: psutil.Process(pid) for name, pid in names.items()},
            cpu={name: [] for name in names},
            rss={name: [] for name in names},
        )

    def sample(self) -> None:
        """Take one sample. A process that ended keeps its last figures."""
        self.at.append(time.time())
        for name, process in self.processes.items():
            try:
                cpu, rss = _cpu_seconds(process), float(process.memory_info().rss)
            except psutil.NoSuchProcess:
                cpu = self.cpu[name][-1] if self.cpu[name] else 0.0
                rss = 0.0
            self.cpu[name].append(cpu)
            self.rss[name].append(rss)

    async def run(self) -> None:
        """Sample until cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                self.sample()
                await asyncio.sleep(SAMPLE_SECONDS)

    def cpu_between(self, start: float, end: float) -> dict[str, float]:
        """CPU seconds of each process from ``start`` to ``end`` (Unix seconds)."""
        return {
            name: float(np.interp(end, self.at, series) - np.interp(start, self.at, series))
            for name, series in self.cpu.items()
        }

    def memory_between(self, start: float, end: float) -> dict[str, dict[str, float]]:
        """Resident megabytes at start, end and peak, and the slope of a straight line."""
        at = np.array(self.at)
        inside = (at >= start) & (at <= end)
        found = {}
        for name, series in self.rss.items():
            mb = np.array(series) / _MB
            slope = 0.0
            if inside.sum() > 2:
                slope = float(np.polyfit((at[inside] - start) / 60, mb[inside], 1)[0])
            found[name] = {
                "start_mb": round(float(np.interp(start, at, mb)), 1),
                "end_mb": round(float(np.interp(end, at, mb)), 1),
                "peak_mb": round(float(mb[inside].max(initial=0.0)), 1),
                "slope_mb_per_minute": round(slope, 2),
            }
        return found


def percentiles(values_ms: list[float]) -> dict[str, float | None]:
    """p50 and p99, None without values; with fewer than a hundred the p99 is near the maximum."""
    if not values_ms:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values_ms, [50, 99])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1)}
