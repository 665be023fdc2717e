"""How cards fail: one function and one line in :data:`KINDS` a kind.

A kind's function receives the effects to change, which cards ``i_F`` it concerns, how far
their damage has come ``x_F`` (0 when it begins to show, 1 at the failure), eight uniforms
``u_FU`` that are a card's own, and the seconds since the story's start. The sizes of the
effects are chosen, not measured: no public 5-second record of failing cards exists. They are
spread widely so that nothing may be learnt from them but directions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.effects import Effects
from simulator.streams import F64, Int

Apply = Callable[[Effects, Int, F64, F64, float], None]


@dataclass(frozen=True, slots=True)
class FailureKind:
    """One way to fail.

    ``signals`` are those that move before the failure (empty: there is no precursor);
    ``ramp_minutes`` bound how long before it; ``weight`` is the share among failures.
    ``needs_fan`` and ``needs_ecc`` restrict it to cards that have such a part;
    ``whole_rig`` takes all cards of a rig down at once.
    """

    name: str
    apply: Apply
    signals: tuple[str, ...]
    ramp_minutes: tuple[float, float]
    weight: float
    needs_fan: bool = False
    needs_ecc: bool = False
    whole_rig: bool = False


def _between(low: float, high: float, u_F: F64) -> F64:
    """Uniform share ``u_F`` of the way from low to high."""
    return low + (high - low) * u_F


def _now_and_then(chance_F: F64, u_FU: F64, at_seconds: float) -> F64:
    """1 while an irregular, card-specific fault shows, for about ``chance_F`` of the time.

    A sum of two slow waves of incommensurate periods against a threshold: a closed form, so
    that it does not depend on the cadence.
    """
    first = np.sin(at_seconds * 2 * np.pi / _between(45, 240, u_FU[:, 6]) + 9 * u_FU[:, 7])
    second = np.sin(at_seconds * 2 * np.pi / _between(130, 700, u_FU[:, 7]) + 9 * u_FU[:, 6])
    return ((first + second) * 0.25 + 0.5 > 1 - chance_F).astype(np.float64)


def _fan_bearing(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, at_seconds: float) -> None:
    """Lubricant gone, races pitted: stronger and rougher vibration, drag, at last stalls."""
    wear_F = x_F * _between(0.5, 1.2, u_FU[:, 2])
    fx["bearing_wear"][i_F] += wear_F
    stall_F = np.where(x_F > 0.8, (x_F - 0.8) * 1.5 * u_FU[:, 3], 0.0)
    fx["fan_blocked"][i_F] = np.maximum(
        fx["fan_blocked"][i_F], _now_and_then(stall_F, u_FU, at_seconds)
    )


def _fan_stop(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, at_seconds: float) -> None:
    """Broken blade, torn cable or dead motor: short stalls, then a fan that stands still."""
    stopped_F = (x_F > _between(0.25, 0.7, u_FU[:, 2])).astype(np.float64)
    stalls_F = _now_and_then(0.35 * x_F, u_FU, at_seconds)
    fx["fan_blocked"][i_F] = np.maximum(fx["fan_blocked"][i_F], np.maximum(stopped_F, stalls_F))


def _dust(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, _: float) -> None:
    """Felted fins: the same fan moves less air, the heatsink runs hotter over the inlet."""
    fx["blockage"][i_F] += x_F * _between(0.45, 0.85, u_FU[:, 2])


def _paste_pumpout(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, _: float) -> None:
    """Thermal cycles squeeze the paste out: die over heatsink grows at equal power."""
    fx["paste_factor"][i_F] *= 1 + x_F * _between(0.7, 2.6, u_FU[:, 2])
    fx["pad_factor"][i_F] *= 1 + x_F * _between(0.0, 0.6, u_FU[:, 3])


def _vrm_capacitor(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, _: float) -> None:
    """Electrolyte dries out: series resistance and ripple rise, losses and unrest follow."""
    fx["esr_factor"][i_F] *= 1 + x_F * _between(1.2, 6.0, u_FU[:, 2])
    fx["regulator_loss"][i_F] += x_F * _between(0.0, 0.06, u_FU[:, 3])
    fx["power_unrest"][i_F] += x_F * _between(0.0, 0.05, u_FU[:, 4])
    fx["rail_sag_volts"][i_F] += x_F * _between(0.0, 0.12, u_FU[:, 5])


def _memory_decay(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, at_seconds: float) -> None:
    """Weak cells: corrected errors in bursts, more and more; uncorrected ones near the end."""
    peak_F = np.exp(_between(np.log(25.0), np.log(1500.0), u_FU[:, 2]))
    burst_F = 0.4 + 1.6 * _now_and_then(np.full_like(x_F, 0.4), u_FU, at_seconds)
    fx["corrected_per_hour"][i_F] += peak_F * x_F * burst_F
    late_F = np.maximum(x_F - _between(0.75, 1.0, u_FU[:, 3]), 0.0)
    fx["uncorrected_per_hour"][i_F] += 40.0 * late_F


def _pcie_link(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, at_seconds: float) -> None:
    """Worn contacts or riser: the link retrains at half the width, flaps, then drops out."""
    flap_F = _now_and_then(0.5 * x_F, u_FU, at_seconds)
    stage_F = np.floor(x_F * _between(2.0, 4.5, u_FU[:, 2]) + 0.8 * flap_F)
    fx["lanes_lost"][i_F] += np.maximum(stage_F, (x_F > 0.35) * 1.0)
    fx["hangs_per_hour"][i_F] += np.maximum(x_F - 0.5, 0.0) * 25.0 * u_FU[:, 3]


def _detach(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, _: float) -> None:
    """Falling off the bus: reads fail now and then, more often, longer, then for good."""
    fx["hangs_per_hour"][i_F] += 3.0 + x_F * _between(15.0, 90.0, u_FU[:, 2])
    fx["hang_seconds"][i_F] = _between(6.0, 45.0, u_FU[:, 3]) * (0.5 + x_F)


def _psu_sag(fx: Effects, i_F: Int, x_F: F64, u_FU: F64, _: float) -> None:
    """The rig's supply gives way: the 12 V rail sags under load and carries more ripple."""
    fx["rail_sag_volts"][i_F] += x_F * _between(0.08, 0.7, u_FU[:, 2])
    fx["supply_resistance_factor"][i_F] *= 1 + x_F * _between(1.0, 6.0, u_FU[:, 3])
    fx["esr_factor"][i_F] *= 1 + x_F * _between(0.3, 1.8, u_FU[:, 4])


def _sudden(_fx: Effects, _i: Int, _x: F64, _u: F64, _at: float) -> None:
    """A cracked joint, a shorted transistor: nothing shows before."""


KINDS: Final[dict[str, FailureKind]] = {
    kind.name: kind
    for kind in (
        FailureKind(
            "fan_bearing",
            _fan_bearing,
            ("fan_vibration_g", "fan_speed_rpm"),
            (60, 330),
            1.6,
            needs_fan=True,
        ),
        FailureKind(
            "fan_stop",
            _fan_stop,
            ("fan_speed_rpm", "temperature_celsius"),
            (25, 120),
            0.7,
            needs_fan=True,
        ),
        FailureKind("dust", _dust, ("temperature_celsius", "fan_duty_ratio"), (90, 480), 0.8),
        FailureKind("paste_pumpout", _paste_pumpout, ("temperature_celsius",), (80, 420), 1.4),
        FailureKind("vrm_capacitor", _vrm_capacitor, ("vrm_ripple_volts",), (50, 330), 1.5),
        FailureKind(
            "memory_decay", _memory_decay, ("ecc_corrected_total",), (50, 330), 1.4, needs_ecc=True
        ),
        FailureKind("pcie_link", _pcie_link, ("pcie_link_width",), (30, 240), 0.8),
        FailureKind("detach", _detach, ("temperature_celsius",), (25, 210), 1.1),
        FailureKind(
            "psu_sag",
            _psu_sag,
            ("vrm_voltage_volts", "vrm_ripple_volts"),
            (60, 300),
            0.5,
            whole_rig=True,
        ),
        FailureKind("sudden", _sudden, (), (0, 0), 0.7),
    )
}


def shapes(u_FU: F64) -> F64:
    """How damage grows over the ramp, an exponent a card: over 1 slow first, under 1 at once."""
    return np.exp(_between(np.log(0.5), np.log(2.2), u_FU[:, 0]))
