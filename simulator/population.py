"""Every card is different: constants of single cards and rigs, and the sensors they have.

The nominal values are typical of the card models; the spreads are guesses, wide on purpose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.signals import SIGNAL_NAMES
from simulator.cards import CardModel
from simulator.story import Card, Domain, Rig, Story
from simulator.streams import F64, Bool, normals, uniforms


@dataclass(frozen=True, slots=True)
class Spread:
    """How far constants stray: from card to card, and a whole model's in one world (a seed)."""

    card: float
    world: float


SPREADS: Final[dict[Domain, Spread]] = {
    "default": Spread(card=1.0, world=0.6),
    "varied": Spread(card=1.25, world=1.1),
    "wide": Spread(card=1.5, world=1.8),
}

_ALWAYS = (
    "temperature_celsius",
    "temperature_rate_celsius_per_second",
    "power_watts",
    "pcie_link_width",
    "pcie_link_width_max",
)


def sensors_of(card: Card, rig: Rig) -> frozenset[str]:
    """The signals that ``card`` has in ``rig``; all others are missing."""
    model = card.card_model
    fitted = {
        "memory_temperature_celsius": model.memory_temperature,
        "ecc_corrected_total": model.ecc,
        "ecc_uncorrected_total": model.ecc,
        "vrm_voltage_volts": rig.adc or model.core_voltage_volts is not None,
        "vrm_ripple_volts": rig.adc,
        "fan_speed_rpm": model.fan,
        "fan_duty_ratio": model.fan and model.vendor == "nvidia",
        "fan_vibration_hertz": rig.accelerometer and model.fan,
        "fan_vibration_g": rig.accelerometer and model.fan,
        "utilization_ratio": model.utilization,
        "ambient_celsius": rig.inlet,
    }
    return frozenset(_ALWAYS) | {name for name, present in fitted.items() if present}


class _Draw:
    """Random constants of cards, one column of their normals after the other."""

    def __init__(self, story: Story, cards: Sequence[Card]) -> None:
        names = [card.device for card in cards]
        spread = SPREADS[story.domain]
        models = sorted({card.model for card in cards})
        world = dict(zip(models, normals(story.seed, "world", models, 32), strict=True))
        z_DK = spread.card * normals(story.seed, "card", names, 32)
        z_DK += spread.world * np.array([world[card.model] for card in cards])
        self._z_KD = iter(np.clip(z_DK, -3.0, 3.0).T)
        self.u_UD = uniforms(story.seed, "card-choices", names, 8).T

    def times(self, sigma: float, nominal: F64 | float = 1.0) -> F64:
        """Positive constants [D], log-normal about ``nominal``."""
        return np.asarray(nominal * np.exp(sigma * next(self._z_KD)), dtype=np.float64)

    def plus(self, sigma: float, nominal: F64 | float = 0.0) -> F64:
        """Constants [D], normal about ``nominal``."""
        return np.asarray(nominal + sigma * next(self._z_KD), dtype=np.float64)


class CardConstants:
    """Constants [D] of cards, drawn from each card's own stream."""

    def __init__(self, story: Story, cards: Sequence[Card], rig_D: Sequence[Rig]) -> None:
        draw = _Draw(story, cards)
        models = [card.card_model for card in cards]
        wear_D = np.array([card.wear for card in cards])
        self.passive_D: Bool = np.array([not m.fan for m in models])
        self._heat(draw, models, wear_D)
        self._fan(draw, models)
        self._vibration(draw, wear_D)
        self._electric(draw, models, wear_D, np.array([rig.adc for rig in rig_D]))
        self.corrected_per_hour_D = draw.times(1.5, 0.03)
        lanes = [m.lanes[int(u * len(m.lanes))] for m, u in zip(models, draw.u_UD[0], strict=True)]
        self.lanes_D = np.array(lanes, dtype=np.float64)
        available = [sensors_of(card, rig) for card, rig in zip(cards, rig_D, strict=True)]
        self.missing_SD: Bool = np.array(
            [[name not in has for has in available] for name in SIGNAL_NAMES]
        )
        self.temperature_step_D = np.array([m.temperature_step_celsius for m in models])

    def _heat(self, draw: _Draw, models: list[CardModel], wear_D: F64) -> None:
        limit_D = np.array([m.power_limit_watts for m in models])
        # Owners often lower the power limit of second-hand cards.
        self.limit_watts_D = np.minimum(draw.times(0.12, limit_D * 0.92), limit_D * 1.05)
        self.idle_watts_D = draw.times(0.15, np.array([m.idle_watts for m in models]))
        self.leakage_D = draw.times(0.3, 0.002)  # share per °C
        sink_D = np.array([m.sink_rise_celsius for m in models])
        paste_D = np.array([m.paste_rise_celsius for m in models])
        self.sink_resistance_D = draw.times(0.14, sink_D / limit_D)
        self.paste_resistance_D = draw.times(0.2, paste_D / limit_D)
        self.paste_resistance_D *= 1 + 0.3 * wear_D * draw.u_UD[0]
        self.die_seconds_D = draw.times(0.3, 7.0)
        self.sink_seconds_D = draw.times(0.25, 70.0)  # at the full fan's resistance
        self.memory_rise_D = draw.times(0.25, 14.0)
        self.memory_seconds_D = draw.times(0.3, 60.0)
        self.throttle_celsius_D = np.array([m.throttle_celsius for m in models])
        self.dust_D = 0.3 * wear_D * draw.u_UD[1]
        self.air_share_D = draw.times(0.25)  # of the rig's warm air that this place breathes

    def _fan(self, draw: _Draw, models: list[CardModel]) -> None:
        self.rpm_max_D = draw.times(0.08, np.array([m.fan_rpm_max or 4000.0 for m in models]))
        fixed_D = draw.u_UD[2] < 0.12  # miners fix the fan
        low_D = np.clip(draw.plus(0.05, 0.32), 0.15, 0.6)
        self.duty_low_D = np.where(fixed_D, 0.5 + 0.4 * draw.u_UD[3], low_D)
        self.duty_slope_D = np.where(fixed_D, 0.0, draw.times(0.2, 0.018))  # per °C
        self.duty_from_D = draw.plus(5.0, 48.0)
        self.zero_rpm_D: Bool = np.array([m.zero_rpm for m in models]) & ~fixed_D
        chassis_D = np.clip(draw.times(0.15, 0.65), 0.3, 1.0)
        self.chassis_flow_D = np.where(self.passive_D, chassis_D, 0.08)
        self.fan_seconds_D = draw.times(0.3, 8.0)
        self.fan_jitter_D = draw.times(0.4, 0.004)

    def _vibration(self, draw: _Draw, wear_D: F64) -> None:
        self.vibration_g_D = draw.times(0.45, 0.22) * (1 + 0.6 * wear_D * draw.u_UD[4])
        self.vibration_floor_g_D = draw.times(0.3, 0.012)
        self.vibration_spread_D = draw.times(0.3, 0.07)
        self.bearing_g_D = draw.times(0.4, 0.35)  # worn races at full speed
        self.order_D = np.where(draw.u_UD[5] < 0.6, 1.0, 2.0)
        self.bearing_order_D = 2.6 + 3.2 * draw.u_UD[6]
        self.order_change_D = 0.25 + 0.4 * draw.u_UD[7]

    def _electric(self, draw: _Draw, models: list[CardModel], wear_D: F64, adc_D: Bool) -> None:
        self.ripple_volts_D = draw.times(0.4, 0.035) * (1 + 0.5 * wear_D * draw.u_UD[4])
        self.ripple_load_D = draw.times(0.25, 0.9)
        self.ripple_spread_D = draw.times(0.35, 0.05)
        self.cable_ohms_D = draw.times(0.3, 0.006)
        core_D = draw.times(0.03, np.array([m.core_voltage_volts or 0.0 for m in models]))
        self.core_volts_D = np.where(adc_D, 0.0, core_D)


class RigConstants:
    """Constants [N] of rigs: room, air, supply."""

    def __init__(self, story: Story, nodes: Sequence[str]) -> None:
        spread = SPREADS[story.domain].card
        z_NK = spread * np.clip(normals(story.seed, "rig", nodes, 12), -3, 3)
        u_NK = uniforms(story.seed, "rig-choices", nodes, 8)
        self.room_celsius_N = np.clip(23.0 + 3.0 * z_NK[:, 0], 12.0, 36.0)
        self.daily_celsius_N = 2.0 * np.exp(0.5 * z_NK[:, 1])
        self.daily_phase_N = 14.0 + 1.5 * z_NK[:, 2]  # hour of the warmest air
        self.wander_celsius_N = 0.4 * np.exp(0.4 * z_NK[:, 3])
        self.wander_seconds_NW = 900.0 + 5400.0 * u_NK[:, 0:2]
        self.wander_phase_NW = 2 * np.pi * u_NK[:, 2:4]
        self.air_celsius_per_watt_N = 0.0028 * np.exp(0.35 * z_NK[:, 4])
        self.air_seconds_N = 260.0 * np.exp(0.3 * z_NK[:, 5])
        self.supply_volts_N = 12.12 + 0.06 * z_NK[:, 6]
        self.supply_ohms_N = 0.0008 * np.exp(0.3 * z_NK[:, 7])
        self.lost_share_N = 0.0005 * np.exp(1.0 * z_NK[:, 8])  # messages that never arrive
        self.read_failure_share_N = 0.0003 * np.exp(1.0 * z_NK[:, 9])  # single reads
