"""From a card's true state to what its sensors say: noise, resolution, what is not there."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.signals import SIGNAL_NAMES
from simulator.effects import Effects
from simulator.physics import Machine
from simulator.population import CardConstants, RigConstants
from simulator.streams import F64, Int, clamp

ROW: Final[dict[str, int]] = {name: i for i, name in enumerate(SIGNAL_NAMES)}
NORMALS: Final = 12
UNIFORMS: Final = 8

_STEPS_PER_UNIT: Final[dict[str, float]] = {
    # Resolution: NVML gives whole degrees and per cent; ADC and accelerometer bursts are
    # averaged; a spectrum of two seconds has lines half a hertz apart.
    "memory_temperature_celsius": 1,
    "fan_speed_rpm": 1,
    "fan_duty_ratio": 100,
    "fan_vibration_hertz": 2,
    "fan_vibration_g": 1000,
    "vrm_voltage_volts": 1000,
    "vrm_ripple_volts": 10_000,
    "power_watts": 10,
    "utilization_ratio": 100,
    "ambient_celsius": 16,
}
_HUM_HERTZ: Final = 50.0  # what the spectrum shows beside a fan that stands still


@dataclass(slots=True)
class Counters:
    """ECC counts since the driver was loaded [D]."""

    corrected_D: F64
    uncorrected_D: F64


def poisson(mean_D: F64, u_D: F64, z_D: F64) -> F64:
    """Poisson numbers [D] by inversion of ``u_D``; a normal of ``z_D`` above a mean of 12."""
    counts_D = np.zeros_like(mean_D)
    candidates = np.nonzero(u_D > 1.0 - mean_D)[0]  # 1 − e^−m ≤ m: all others are 0
    if candidates.size:
        mean, u = mean_D[candidates], u_D[candidates]
        term = np.exp(-mean)
        below, number = term.copy(), np.zeros_like(mean)
        for k in range(1, 41):
            number += u > below
            term = term * mean / k
            below = below + term
        large = np.rint(mean + np.sqrt(mean) * z_D[candidates])
        counts_D[candidates] = np.where(mean > 12.0, np.maximum(large, 0.0), number)
    return counts_D


def resolution(cards: CardConstants) -> F64:
    """Steps per unit of every reading [S, D]."""
    steps_SD = np.full((len(SIGNAL_NAMES), len(cards.lanes_D)), 1.0)
    for name, steps in _STEPS_PER_UNIT.items():
        steps_SD[ROW[name]] = steps
    steps_SD[ROW["temperature_celsius"]] = 1.0 / cards.temperature_step_D
    return steps_SD


def count_errors(
    counters: Counters, seconds: float, cards: CardConstants, fx: Effects, z_KD: F64, u_UD: F64
) -> None:
    """Add the ECC events of the last ``seconds``."""
    hours = seconds / 3600.0
    mean_D = (cards.corrected_per_hour_D + fx["corrected_per_hour"]) * hours
    counters.corrected_D += poisson(mean_D, u_UD[5], z_KD[11])
    counters.uncorrected_D += poisson(fx["uncorrected_per_hour"] * hours, u_UD[6], z_KD[11])
    zero_D = fx["zero_counters"] > 0
    if zero_D.any():
        counters.corrected_D[zero_D] = 0.0
        counters.uncorrected_D[zero_D] = 0.0


def read(
    machine: Machine,
    cards: CardConstants,
    rigs: RigConstants,
    room_D: F64,
    fx: Effects,
    utilization_D: F64,
    jitter_D: F64,
    counters: Counters,
    first_D: Int,
    z_KD: F64,
) -> F64:
    """What the sensors say before gaps and glitches, in full resolution [S, D].

    ``first_D`` is the first card of each card's rig: what the rig has once shares its noise.
    """
    m, c = machine, cards
    out_SD = np.zeros((len(SIGNAL_NAMES), len(m.node_D)))
    celsius_D = m.sink_D + m.die_over_sink_D
    out_SD[ROW["temperature_celsius"]] = celsius_D + 0.25 * z_KD[0]
    out_SD[ROW["temperature_rate_celsius_per_second"]] = np.nan
    out_SD[ROW["memory_temperature_celsius"]] = m.sink_D + m.memory_over_sink_D + 0.3 * z_KD[1]
    out_SD[ROW["ecc_corrected_total"]] = counters.corrected_D
    out_SD[ROW["ecc_uncorrected_total"]] = counters.uncorrected_D

    wear_D = fx["bearing_wear"]
    rpm_D = m.rpm_D * (1.0 + (c.fan_jitter_D + 0.05 * wear_D) * z_KD[2])
    out_SD[ROW["fan_speed_rpm"]] = np.maximum(rpm_D, 0.0)
    out_SD[ROW["fan_duty_ratio"]] = m.duty_D
    bearing_D = wear_D > c.order_change_D + 0.12 * z_KD[3]
    line_D = rpm_D / 60.0 * np.where(bearing_D, c.bearing_order_D, c.order_D)
    out_SD[ROW["fan_vibration_hertz"]] = np.where(rpm_D > 60.0, line_D, _HUM_HERTZ)
    turning_D = m.rpm_D / c.rpm_max_D
    # Unbalance grows with the square of the speed, rough races with the speed.
    rough_D = (c.bearing_g_D + 1.5 * c.vibration_g_D) * wear_D
    own_D = turning_D * (c.vibration_g_D * turning_D + rough_D)
    own_D *= np.exp(c.vibration_spread_D * z_KD[4])
    around_D = 0.03 * m.per_node(own_D)[m.node_D]
    shaking_D = fx["shaking_g"] * np.abs(1.0 + 0.4 * z_KD[3])
    out_SD[ROW["fan_vibration_g"]] = c.vibration_floor_g_D + own_D + around_D + shaking_D

    amperes_D = m.power_D / 12.0
    rig_amperes_D = (m.per_node(amperes_D) + 10.0)[m.node_D]
    drop_D = (
        rigs.supply_ohms_N[m.node_D] * fx["supply_resistance_factor"] * rig_amperes_D
        + c.cable_ohms_D * amperes_D
        + fx["rail_sag_volts"]
    )
    drop_D = np.minimum(drop_D, 2.5)  # below that a supply has long switched itself off
    rail_D = rigs.supply_volts_N[m.node_D] - drop_D + 0.006 * z_KD[5]
    core_D = c.core_volts_D * (1.0 - 0.03 * m.load_D - 0.03 * drop_D) + 0.001 * z_KD[5]
    out_SD[ROW["vrm_voltage_volts"]] = np.where(c.core_volts_D > 0, core_D, rail_D)
    ripple_D = c.ripple_volts_D * (0.45 + c.ripple_load_D * m.power_D / c.limit_watts_D)
    ripple_D *= fx["esr_factor"] * (1.0 - 0.002 * (m.sink_D - 45.0))  # warm electrolyte: less
    out_SD[ROW["vrm_ripple_volts"]] = ripple_D * np.exp(c.ripple_spread_D * z_KD[6])

    unrest_D = 1.0 + (0.012 + fx["power_unrest"]) * z_KD[7]
    out_SD[ROW["power_watts"]] = np.maximum(m.power_D * unrest_D, 0.0)
    busy_D = utilization_D + jitter_D * z_KD[8]
    out_SD[ROW["utilization_ratio"]] = np.where(utilization_D > 0, clamp(busy_D, 0, 1), 0.0)
    lost_D = np.minimum(np.rint(fx["lanes_lost"]), 4.0)
    out_SD[ROW["pcie_link_width"]] = np.maximum(np.floor(c.lanes_D * 0.5**lost_D), 1.0)
    out_SD[ROW["pcie_link_width_max"]] = 16.0
    inlet_D = room_D[first_D] + 0.25 * m.air_N[m.node_D]
    out_SD[ROW["ambient_celsius"]] = inlet_D + 0.05 * z_KD[9][first_D]
    return out_SD
