"""Heat, air and fans of D cards in N rigs: two thermal masses a card, shared air a rig.

The die follows its power over the paste within seconds, the heatsink within minutes, with a
resistance that falls with the air moved through it. Every mass relaxes exponentially towards
its goal, so any step is stable; longer steps are cut to ten seconds because the fan reacts.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from simulator.effects import Effects
from simulator.population import CardConstants, RigConstants
from simulator.streams import F64, Bool, Int, clamp

_STEP_SECONDS: Final = 10.0
_MEMORY_SECONDS: Final = 600.0  # older than this nothing is felt any more
_FLOW_EXPONENT: Final = -0.75  # forced convection over fins: between laminar and turbulent


def room_celsius(rig: RigConstants, at_seconds: float) -> F64:
    """Air before the inlets [N]: base, daily cycle, slow wander."""
    hours = at_seconds / 3600.0
    daily_N = np.cos((hours - rig.daily_phase_N) * (2 * np.pi / 24.0))
    wander_N = np.sin(at_seconds / rig.wander_seconds_NW + rig.wander_phase_NW).sum(axis=1)
    air_N: F64 = (
        rig.room_celsius_N + rig.daily_celsius_N * daily_N + rig.wander_celsius_N * wander_N
    )
    return air_N


class Machine:
    """The state of the cards; :meth:`advance` moves it on. Arrays are read by the sensors."""

    def __init__(self, cards: CardConstants, rigs: RigConstants, node_D: Sequence[int]) -> None:
        self._card, self._rig = cards, rigs
        self.node_D: Int = np.array(node_D, dtype=np.int64)
        self._nodes = len(rigs.room_celsius_N)
        count = len(self.node_D)
        self.power_D = np.zeros(count)
        self.load_D = np.zeros(count)
        self.die_over_sink_D = np.zeros(count)
        self.memory_over_sink_D = np.zeros(count)
        self.sink_D = rigs.room_celsius_N[self.node_D] + 10.0
        self.duty_D = np.where(cards.passive_D, 0.0, cards.duty_low_D)
        self.rpm_D = self.duty_D * cards.rpm_max_D
        self.air_N = np.zeros(self._nodes)
        self._decays: dict[float, tuple[F64, F64, F64, F64]] = {}

    def per_node(self, values_D: F64) -> F64:
        """Sum over the cards of each rig [N]."""
        sums_N: F64 = np.bincount(  # floats when it is given weights
            self.node_D, weights=values_D, minlength=self._nodes
        ).astype(np.float64, copy=False)
        return sums_N

    def settle(self, fx: Effects, work_D: F64, room_D: F64, alive_D: Bool) -> None:
        """Bring everything to where it would be after an hour of the same."""
        for _ in range(90):
            self._step(40.0, fx, work_D, room_D, alive_D)

    def advance(self, seconds: float, fx: Effects, work_D: F64, room_D: F64, alive_D: Bool) -> None:
        """Move on by ``seconds``. ``work_D`` is load (0–1), ``room_D`` °C before the inlet."""
        if seconds <= 0:
            return
        felt = min(seconds, _MEMORY_SECONDS)
        count = math.ceil(felt / _STEP_SECONDS)
        for _ in range(count):
            self._step(felt / count, fx, work_D, room_D, alive_D)

    def _decay(self, seconds: float) -> tuple[F64, F64, F64, F64]:
        """Shares of the way to the goal that die, memory, fan [D] and air [N] go."""
        if seconds not in self._decays:
            if len(self._decays) > 64:  # an agent's steps vary by microseconds
                self._decays.clear()
            c = self._card
            times = (c.die_seconds_D, c.memory_seconds_D, c.fan_seconds_D, self._rig.air_seconds_N)
            die, memory, fan, air = (-np.expm1(-seconds / t) for t in times)
            self._decays[seconds] = (die, memory, fan, air)
        return self._decays[seconds]

    def _step(self, seconds: float, fx: Effects, work_D: F64, room_D: F64, alive_D: Bool) -> None:
        c = self._card
        die_share, memory_share, fan_share, air_share = self._decay(seconds)
        celsius_D = self.sink_D + self.die_over_sink_D
        throttle_D = clamp(1.0 - 0.06 * (celsius_D - c.throttle_celsius_D), 0.25, 1.0)
        self.load_D = work_D * throttle_D
        power_D = c.idle_watts_D + (c.limit_watts_D - c.idle_watts_D) * self.load_D
        power_D *= 1.0 + c.leakage_D * (celsius_D - 60.0)
        power_D *= (1.0 + fx["regulator_loss"]) * alive_D
        self.power_D = np.minimum(power_D, 1.08 * c.limit_watts_D)

        air_goal_N = self._rig.air_celsius_per_watt_N * self.per_node(self.power_D)
        self.air_N = self.air_N + (air_goal_N - self.air_N) * air_share
        inlet_D = room_D + self.air_N[self.node_D] * c.air_share_D

        self._turn_fans(fan_share, fx, celsius_D, alive_D)
        open_D = 1.0 - clamp(c.dust_D + fx["blockage"], 0.0, 0.93)
        flow_D = (c.chassis_flow_D + self.rpm_D / c.rpm_max_D) * open_D
        thickness_D = 0.25 + 0.75 * np.maximum(flow_D, 0.03) ** _FLOW_EXPONENT
        sink_goal_D = inlet_D + self.power_D * c.sink_resistance_D * thickness_D
        sink_share_D = -np.expm1(-seconds / (c.sink_seconds_D * thickness_D))
        self.sink_D = np.minimum(self.sink_D + (sink_goal_D - self.sink_D) * sink_share_D, 105.0)
        die_goal_D = self.power_D * c.paste_resistance_D * fx["paste_factor"]
        self.die_over_sink_D = (
            self.die_over_sink_D + (np.minimum(die_goal_D, 45.0) - self.die_over_sink_D) * die_share
        )
        memory_goal_D = c.memory_rise_D * self.load_D * fx["pad_factor"]
        self.memory_over_sink_D = (
            self.memory_over_sink_D
            + (np.minimum(memory_goal_D, 40.0) - self.memory_over_sink_D) * memory_share
        )

    def _turn_fans(self, fan_share_D: F64, fx: Effects, celsius_D: F64, alive_D: Bool) -> None:
        c = self._card
        over_D = celsius_D - c.duty_from_D
        goal_D = c.duty_low_D + np.maximum(over_D, 0.0) * c.duty_slope_D + fx["duty_offset"]
        goal_D = clamp(goal_D, 0.15, 1.0)
        # Four degrees of hysteresis either way, as makers do for fans that stop when cool.
        resting_D = c.zero_rpm_D & (over_D < np.where(self.duty_D < 0.02, 4.0, -4.0))
        goal_D = np.where(resting_D | c.passive_D | ~alive_D, 0.0, goal_D)
        duty_D = self.duty_D + (goal_D - self.duty_D) * fan_share_D
        self.duty_D = np.where((goal_D == 0.0) & (duty_D < 0.05), 0.0, duty_D)
        drag_D = 1.0 - 0.22 * np.minimum(fx["bearing_wear"], 1.2)
        self.rpm_D = c.rpm_max_D * self.duty_D * drag_D * (1.0 - fx["fan_blocked"])
