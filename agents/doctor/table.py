"""The table of checks.

A new check is one function ``Machine → list[Finding]`` (with ``Options`` where it needs what the
operator said) and one line here; docs/doctor.md has a row for each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agents.doctor import cards as rig
from agents.doctor.checks import (
    bandwidth,
    bars,
    broker,
    clocks,
    fans,
    host,
    memory,
    nvidia,
    old,
    pcie,
    power,
    sensors,
    tenstorrent,
)
from agents.doctor.finding import Finding
from agents.doctor.machine import Machine
from agents.settings import MqttSettings


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator told the command."""

    mqtt: MqttSettings = field(default_factory=MqttSettings)
    broker_given: bool = False
    """Whether a broker was named at all; the default address alone is no configuration."""
    state: Path | None = None
    supply_watts: float | None = None
    measure: bool = False
    """Whether checks may put load on the cards."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check; ``needs`` is the vendor without whose cards there is nothing to look at, or
    ``card`` for one of any vendor.
    """

    name: str
    look: Callable[[Machine, Options], list[Finding]]
    needs: str | None = None


CHECKS: Final[tuple[Check, ...]] = (
    Check("pcie-width", lambda m, _: pcie.width(m), "card"),
    Check("pcie-generation", lambda m, _: pcie.generation(m), "card"),
    Check("aer-mode", lambda m, _: pcie.aer_mode(m)),
    Check("aer-counters", lambda m, _: pcie.aer_counters(m), "card"),
    Check("pcie-replays", lambda m, _: pcie.replays(m), rig.NVIDIA),
    Check("above-4g", lambda m, _: bars.above_4g(m), "card"),
    Check("resizable-bar", lambda m, _: bars.resizable(m), "card"),
    Check("link-bandwidth", lambda m, o: bandwidth.link(m, measure=o.measure), "card"),
    Check("nvidia-driver", lambda m, _: nvidia.driver(m), rig.NVIDIA),
    Check("nvml", lambda m, _: nvidia.nvml(m), rig.NVIDIA),
    Check("identity", lambda m, _: nvidia.identity(m), rig.NVIDIA),
    Check("persistence", lambda m, _: nvidia.persistence(m), rig.NVIDIA),
    Check("clocks", lambda m, _: clocks.limits(m), rig.NVIDIA),
    Check("throttling", lambda m, _: clocks.throttling(m), rig.NVIDIA),
    Check("ecc", lambda m, _: memory.ecc(m), rig.NVIDIA),
    Check("retired-memory", lambda m, _: memory.retired(m), rig.NVIDIA),
    Check("memory-temperature", lambda m, _: memory.temperature(m), "card"),
    Check("fans", lambda m, _: fans.fans(m), "card"),
    Check("chassis-fans", lambda m, _: fans.chassis(m)),
    Check("vrm-ripple", lambda m, _: sensors.vrm_ripple(m)),
    Check("fan-vibration", lambda m, _: sensors.fan_vibration(m)),
    Check("ambient", lambda m, _: sensors.ambient(m)),
    Check("power-limit", lambda m, _: power.power_limit(m), rig.NVIDIA),
    Check("supply", lambda m, o: power.supply(m, o.supply_watts), "card"),
    Check("xorg-coolbits", lambda m, _: old.coolbits(m), rig.NVIDIA),
    Check("powermizer", lambda m, _: old.powermizer(m), rig.NVIDIA),
    Check("voltage-curve", lambda m, _: old.voltage_curve(m), rig.NVIDIA),
    Check("tt-kmd", lambda m, _: tenstorrent.kmd(m), rig.TENSTORRENT),
    Check("tt-smi", lambda m, _: tenstorrent.smi(m), rig.TENSTORRENT),
    Check("tt-heartbeat", lambda m, _: tenstorrent.heartbeat(m), rig.TENSTORRENT),
    Check("tt-thermal-trips", lambda m, _: tenstorrent.thermal_trips(m), rig.TENSTORRENT),
    Check("tt-cooling", lambda m, _: tenstorrent.cooling(m), rig.TENSTORRENT),
    Check("tt-connector", lambda m, _: power.connector(m), rig.TENSTORRENT),
    Check("performance-conf", lambda m, _: tenstorrent.performance_conf(m), rig.TENSTORRENT),
    Check("time-sync", lambda m, _: host.time_sync(m)),
    Check("broker", lambda _, o: broker.reach(o.mqtt, given=o.broker_given)),
    Check("broker-tls", lambda m, o: broker.tls(m, o.mqtt, given=o.broker_given)),
    Check("state-disk", lambda _, o: host.state_disk(o.state)),
)
