"""A story played: D cards of N rigs stepped together through time.

The live rigs and the data sets share this class; a rig alone gives the same values as the
same rig among others at the same cadence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.errors import ConfigError
from contract.signals import SIGNALS, STATES
from simulator.effects import Effects
from simulator.harmless import HARMLESS, Episode
from simulator.kinds import KINDS, FailureKind, shapes
from simulator.load import Load
from simulator.physics import Machine, room_celsius
from simulator.population import CardConstants, RigConstants
from simulator.sensors import (
    NORMALS,
    ROW,
    UNIFORMS,
    Counters,
    count_errors,
    read,
    resolution,
)
from simulator.story import Failure, Story
from simulator.streams import F64, Bool, Int, Noise, generator, uniforms

OK: Final = STATES.index("ok")
LOST: Final = STATES.index("lost")
UNRESPONSIVE: Final = STATES.index("unresponsive")

_GLITCHING = (
    "temperature_celsius",
    "memory_temperature_celsius",
    "fan_speed_rpm",
    "fan_vibration_g",
    "vrm_ripple_volts",
    "vrm_voltage_volts",
    "power_watts",
    "ambient_celsius",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One instant of D cards. Rows of ``values_SD`` are ``contract.signals.SIGNALS``.

    ``state_D`` indexes ``contract.signals.STATES``. ``absent_D``: the card is missing from
    its rig's message. ``silent_D``: the whole message is missing, its rig being cut off;
    ``dropped_D``: the message was made but never arrived.
    """

    values_SD: F64
    state_D: Int
    absent_D: Bool
    silent_D: Bool
    dropped_D: Bool


@dataclass(slots=True)
class _Failing:
    """The failures of one kind: arrays over F of its cards."""

    kind: FailureKind
    card_F: Int
    onset_F: F64
    failed_F: F64
    traits_FU: F64
    shape_F: F64


@dataclass(slots=True)
class _Running:
    """A harmless episode that has begun, and how a glitching sensor reads in it."""

    episode: Episode
    card_i: Int
    stream: np.random.Generator
    row: int
    manner: int


class World:
    """Cards of ``nodes`` (default: all of the story), in the order of ``story.devices``."""

    def __init__(self, story: Story, nodes: Sequence[str] | None = None) -> None:
        wanted = story.nodes if nodes is None else tuple(nodes)
        rig_of = {rig.node: rig for rig in story.rigs}
        for node in wanted:
            if node not in rig_of:
                raise ConfigError(
                    f"the story has no node {node!r}; it has {story.nodes[0]!r} "
                    f"to {story.nodes[-1]!r}"
                )
        number = {node: n for n, node in enumerate(wanted)}
        self.cards = tuple(card for card in story.devices if card.node in number)
        node_D = [number[card.node] for card in self.cards]
        names = [card.device for card in self.cards]
        self._card = CardConstants(story, self.cards, [rig_of[c.node] for c in self.cards])
        self._rig = RigConstants(story, wanted)
        self._machine = Machine(self._card, self._rig, node_D)
        self._load = Load(story, wanted, names, self._machine.node_D)
        self._noise = Noise(story.seed, names, NORMALS, UNIFORMS)
        self._fx = Effects(len(names))
        self._counters = Counters(np.zeros(len(names)), np.zeros(len(names)))
        self._steps_SD = resolution(self._card)
        first_N = np.array([node_D.index(n) for n in range(len(wanted))])
        self._first_D: Int = first_N[self._machine.node_D]
        self._hang_until_D = np.full(len(names), -np.inf)
        self._last: float | None = None
        self._index = {name: d for d, name in enumerate(names)}
        self._by_node: dict[str, list[int]] = {node: [] for node in wanted}
        for card in self.cards:
            self._by_node[card.node].append(self._index[card.device])
        self._plan_failures(story, names)
        self._plan_episodes(story)

    def _plan_failures(self, story: Story, names: list[str]) -> None:
        self.failed_at_D = np.full(len(names), np.inf)
        grouped: dict[str, list[Failure]] = {}
        for failure in story.failures:
            if failure.device in self._index:
                grouped.setdefault(failure.kind, []).append(failure)
                self.failed_at_D[self._index[failure.device]] = failure.failed_at_seconds
        self._failing: list[_Failing] = []
        for name, group in grouped.items():
            kind = KINDS[name]
            keys = [f.node if kind.whole_rig else f.device for f in group]
            failed_F = np.array([f.failed_at_seconds for f in group])
            traits_FU = uniforms(story.seed, f"failure {name}", keys, 8)
            self._failing.append(
                _Failing(
                    kind,
                    np.array([self._index[f.device] for f in group]),
                    failed_F - np.array([f.ramp_seconds for f in group]),
                    failed_F,
                    traits_FU,
                    shapes(traits_FU),
                )
            )
        # How a failing read looks: no answer in time, an empty answer, or no card at all.
        self._manner_D = uniforms(story.seed, "manner", names, 1)[:, 0]

    def _plan_episodes(self, story: Story) -> None:
        mine = [e for e in story.episodes if e.node in self._by_node]
        self._waiting = sorted(mine, key=lambda e: e.start_seconds, reverse=True)
        self._running: list[_Running] = []
        self._seed = story.seed

    def sample(self, at_seconds: float) -> Sample:
        """Step to ``at_seconds`` from the story's start and read all sensors.

        Raises:
            ValueError: when ``at_seconds`` lies before the sample before.
        """
        seconds = 0.0 if self._last is None else at_seconds - self._last
        if seconds < 0:
            raise ValueError(f"a story runs forwards: {at_seconds} s comes after {self._last} s")
        z_KD, u_UD = self._noise.tick()
        fx, machine = self._fx, self._machine
        alive_D = self.failed_at_D > at_seconds
        self._script(at_seconds)
        utilization_D, intensity_D, jitter_D = self._load.at(at_seconds)
        imposed_D = fx["utilization"]
        utilization_D = np.where(np.isnan(imposed_D), utilization_D, imposed_D)
        room_D = room_celsius(self._rig, at_seconds)[machine.node_D] + fx["room_celsius"]
        work_D = utilization_D * intensity_D
        if self._last is None:
            machine.settle(fx, work_D, room_D, alive_D)
        machine.advance(seconds, fx, work_D, room_D, alive_D)
        self._last = at_seconds
        count_errors(self._counters, seconds, self._card, fx, z_KD, u_UD)
        values_SD = read(
            machine,
            self._card,
            self._rig,
            room_D,
            fx,
            utilization_D,
            jitter_D,
            self._counters,
            self._first_D,
            z_KD,
        )
        self._glitch(values_SD)
        values_SD = np.rint(values_SD * self._steps_SD) / self._steps_SD
        values_SD[self._card.missing_SD] = np.nan
        return self._gaps(at_seconds, seconds, alive_D, values_SD, u_UD)

    def _script(self, at_seconds: float) -> None:
        """Set the effects of this instant."""
        self._fx.reset()
        for group in self._failing:
            active = np.nonzero((group.onset_F <= at_seconds) & (at_seconds < group.failed_F))[0]
            if active.size:
                onset_F, traits_FU = group.onset_F[active], group.traits_FU[active]
                share_F = (at_seconds - onset_F) / (group.failed_F[active] - onset_F)
                group.kind.apply(
                    self._fx,
                    group.card_F[active],
                    share_F ** group.shape_F[active],
                    traits_FU,
                    at_seconds,
                )
        while self._waiting and self._waiting[-1].start_seconds <= at_seconds:
            self._running.append(self._begin(self._waiting.pop()))
        self._running = [
            r
            for r in self._running
            if at_seconds < r.episode.start_seconds + r.episode.duration_seconds
        ]
        for running in self._running:
            episode = running.episode
            into = at_seconds - episode.start_seconds
            HARMLESS[episode.kind].apply(self._fx, running.card_i, into, episode.size)

    def _begin(self, episode: Episode) -> _Running:
        here = self._by_node[episode.node]
        cards = here if episode.device is None else [self._index[episode.device]]
        key = f"{episode.device or episode.node} {episode.start_seconds}"
        stream = generator(self._seed, "glitch", key)
        rows = [ROW[name] for name in _GLITCHING if not self._card.missing_SD[ROW[name], cards[0]]]
        return _Running(
            episode, np.array(cards), stream, int(stream.choice(rows)), int(stream.integers(3))
        )

    def _glitch(self, values_SD: F64) -> None:
        """A sensor that reads nothing, nought or nonsense for a while."""
        for running in self._running:
            if running.episode.kind == "sensor_glitch":
                row, cards = running.row, running.card_i
                if running.manner == 0:
                    values_SD[row, cards] = np.nan
                elif running.manner == 1:
                    values_SD[row, cards] = 0.0
                else:
                    nonsense = values_SD[row, cards] * running.stream.uniform(0.3, 1.8)
                    values_SD[row, cards] = np.clip(nonsense, SIGNALS[row].low, SIGNALS[row].high)

    def _gaps(
        self, at_seconds: float, seconds: float, alive_D: Bool, values_SD: F64, u_UD: F64
    ) -> Sample:
        """Take away what is not read, not sent or not there any more."""
        fx, node_D = self._fx, self._machine.node_D
        chance_D = -np.expm1(fx["hangs_per_hour"] * (-min(seconds, 60.0) / 3600.0))
        begins_D = (u_UD[0] < chance_D) & (self._hang_until_D <= at_seconds)
        if begins_D.any():
            length_D = -np.log1p(-u_UD[1]) * fx["hang_seconds"]
            until_D = at_seconds + np.clip(length_D, 1.0, 300.0)
            self._hang_until_D = np.where(begins_D, until_D, self._hang_until_D)
        hanging_D = (self._hang_until_D > at_seconds) & alive_D
        state_D = np.where(alive_D, OK, LOST)
        absent_D = np.zeros(len(alive_D), dtype=np.bool_)
        if hanging_D.any():
            state_D[hanging_D & ((self._manner_D < 0.5) | (self._manner_D > 0.8))] = UNRESPONSIVE
            absent_D = hanging_D & (self._manner_D > 0.8)
            values_SD[:, hanging_D] = np.nan
        values_SD[:, ~alive_D] = np.nan
        for d in np.nonzero(u_UD[3] < self._rig.read_failure_share_N[node_D])[0]:
            values_SD[int(u_UD[4, d] * len(values_SD)), d] = np.nan
        dropped_D = (u_UD[2] < self._rig.lost_share_N[node_D])[self._first_D]
        return Sample(values_SD, state_D, absent_D, fx["silent"] > 0, dropped_D)
