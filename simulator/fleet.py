"""Whole fleets of second-hand cards: who they are, what breaks, what only looks like it."""

import math
from dataclasses import dataclass

import numpy as np

from contract.errors import ConfigError
from contract.topics import is_name
from simulator.cards import BATCHES, Batch
from simulator.harmless import HARMLESS, Episode
from simulator.kinds import KINDS, FailureKind
from simulator.population import SPREADS, sensors_of
from simulator.story import Card, Domain, Failure, Rig, Story, device_name, rig_name
from simulator.streams import generator

_DAY_SECONDS = 86_400.0
_EARLIEST_SECONDS = 7_200.0  # a card that fails earlier has no window to be judged by
_UNSEEN_WEIGHT = 0.25  # a kind is rarer among cards that have no sensor to show it
_ROW_OF_RIGS = 4


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet to simulate.

    ``failure_share`` of the cards fail within ``days``; ``move_share`` of those are taken out
    of service before they can. ``domain`` says how far constants stray. ``kinds`` restricts
    the kinds of failure (empty: all).
    """

    rigs: int = 20
    cards: int = 8
    days: float = 2.0
    seed: int = 1
    failure_share: float = 0.4
    interval_seconds: float = 5.0
    domain: Domain = "default"
    site: str = "fleet"
    move_share: float = 0.0
    kinds: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be simulated.

        Raises:
            ConfigError: naming the value and what it may be.
        """
        for name, value, low, high in (
            ("rigs", self.rigs, 1, 20_000),
            ("cards", self.cards, 1, 16),
            ("days", self.days, 1 / 24, 3650),
            ("seed", self.seed, 0, 2**63),
            ("failure-share", self.failure_share, 0, 1),
            ("move-share", self.move_share, 0, 1),
            ("interval", self.interval_seconds, 0.1, 60),
        ):
            if not low <= value <= high:  # also refuses NaN
                raise ConfigError(f"{name} must be {low:g} to {high:g}, not {value:g}")
        if self.domain not in SPREADS:
            raise ConfigError(f"domain must be {' or '.join(SPREADS)}, not {self.domain!r}")
        if not is_name(self.site):
            raise ConfigError(f"site must be 1–64 of A–Z a–z 0–9 . _ -, not {self.site!r}")
        for kind in self.kinds:
            if kind not in KINDS:
                known = ", ".join(KINDS)
                raise ConfigError(f"there is no failure kind {kind!r}; there are {known}")


def fleet_story(spec: FleetSpec) -> Story:
    """The story of ``spec``: cards, failures and harmless episodes, all decided by its seed.

    Raises:
        ConfigError: see :meth:`FleetSpec.check`.
    """
    spec.check()
    rigs, devices, batches = _populate(spec)
    failures = _failures(spec, rigs, devices, batches)
    return Story(
        spec.site,
        spec.seed,
        spec.days * _DAY_SECONDS,
        rigs,
        devices,
        failures,
        _episodes(spec, rigs, devices),
        spec.domain,
    )


def _populate(spec: FleetSpec) -> tuple[tuple[Rig, ...], tuple[Card, ...], list[Batch]]:
    rigs: list[Rig] = []
    devices: list[Card] = []
    batches: list[Batch] = []
    for r in range(spec.rigs):
        node = rig_name(r)
        rng = generator(spec.seed, "population", node)
        adc, accelerometer, inlet = rng.random(3) < (0.7, 0.7, 0.75)
        rigs.append(Rig(node, bool(adc), bool(accelerometer), bool(inlet)))
        home = BATCHES[rng.integers(len(BATCHES))]
        home_model = home.models[rng.integers(len(home.models))]
        for c in range(spec.cards):
            batch, model = home, home_model
            if rng.random() < 0.1:  # a replacement from another lot
                batch = BATCHES[rng.integers(len(BATCHES))]
                model = batch.models[rng.integers(len(batch.models))]
            wear = float(np.clip(batch.wear * rng.uniform(0.4, 1.6), 0.0, 1.0))
            name = device_name(spec.seed, spec.site, node, c)
            devices.append(Card(name, node, c, model, batch.name, wear))
            batches.append(batch)
    return tuple(rigs), tuple(devices), batches


def _kind_weights(card: Card, rig: Rig, batch: Batch, kinds: list[FailureKind]) -> list[float]:
    """How likely each of ``kinds`` is for a card that fails; 0 where it lacks the part."""
    sensors = sensors_of(card, rig)
    factors = dict(batch.kinds)
    weights = []
    for kind in kinds:
        weight = kind.weight * factors.get(kind.name, 1.0)
        if kind.needs_fan and not card.card_model.fan:
            weight = 0.0
        if kind.needs_ecc and not card.card_model.ecc:
            weight = 0.0
        if kind.signals and not sensors.intersection(kind.signals):
            weight *= _UNSEEN_WEIGHT
        weights.append(weight)
    return weights


def _ramp_seconds(kind: FailureKind, rng: np.random.Generator) -> float:
    low, high = kind.ramp_minutes
    return 60.0 * (low * (high / low) ** float(rng.random())) if low else 0.0


def _failures(
    spec: FleetSpec, rigs: tuple[Rig, ...], devices: tuple[Card, ...], batches: list[Batch]
) -> tuple[Failure, ...]:
    rng = generator(spec.seed, "failures")
    duration = spec.days * _DAY_SECONDS
    earliest = min(_EARLIEST_SECONDS, duration / 2)
    wanted = round(spec.failure_share * len(devices))
    chosen = [KINDS[name] for name in spec.kinds] or list(KINDS.values())
    single = [kind for kind in chosen if not kind.whole_rig]
    failures: list[Failure] = []

    total = sum(kind.weight for kind in chosen)
    down: set[str] = set()
    for kind in chosen:
        if kind.whole_rig:
            share = wanted * kind.weight / total / spec.cards
            count = math.floor(share + float(rng.random())) if single else math.ceil(share)
            free = [rig.node for rig in rigs if rig.node not in down]
            for node in rng.choice(free, min(count, len(free)), replace=False).tolist():
                down.add(node)
                at, ramp = float(rng.uniform(earliest, duration)), _ramp_seconds(kind, rng)
                failures += [
                    Failure(card.device, node, kind.name, at, ramp)
                    for card in devices
                    if card.node == node
                ]

    rig_of = {rig.node: rig for rig in rigs}
    weights = np.zeros((len(devices), len(single)))
    for d, (card, batch) in enumerate(zip(devices, batches, strict=True)):
        if card.node not in down and single:
            weights[d] = _kind_weights(card, rig_of[card.node], batch, single)
    hazard = np.array([batch.hazard for batch in batches]) * np.exp(
        0.7 * rng.standard_normal(len(devices))
    )
    hazard[weights.sum(axis=1) == 0] = 0.0
    rest = min(max(wanted - len(failures), 0), int((hazard > 0).sum()))
    if rest:
        for d in rng.choice(len(devices), rest, replace=False, p=hazard / hazard.sum()):
            kind = single[rng.choice(len(single), p=weights[d] / weights[d].sum())]
            at, ramp = float(rng.uniform(earliest, duration)), _ramp_seconds(kind, rng)
            failures.append(Failure(devices[d].device, devices[d].node, kind.name, at, ramp))
    return tuple(sorted(failures, key=lambda f: (f.failed_at_seconds, f.device)))


def _episodes(
    spec: FleetSpec, rigs: tuple[Rig, ...], devices: tuple[Card, ...]
) -> tuple[Episode, ...]:
    nodes = [rig.node for rig in rigs]
    rows = [nodes[i : i + _ROW_OF_RIGS] for i in range(0, len(nodes), _ROW_OF_RIGS)]
    single = [[(card.node, card.device)] for card in devices]
    places: dict[str, list[list[tuple[str, str | None]]]] = {
        "card": [[(node, device)] for [(node, device)] in single],
        "rig": [[(node, None)] for node in nodes],
        "row": [[(node, None) for node in row] for row in rows],
    }
    episodes: list[Episode] = []
    for kind in HARMLESS.values():
        for targets in places[kind.reach]:
            rng = generator(spec.seed, "harmless", kind.name, *map(str, targets[0]))
            low, high = kind.minutes
            for _ in range(rng.poisson(kind.per_day * spec.days)):
                start = float(rng.uniform(0, spec.days * _DAY_SECONDS))
                seconds = 60.0 * low * (high / low) ** float(rng.random())
                size = float(rng.random())
                episodes += [
                    Episode(kind.name, node, device, start, seconds, size)
                    for node, device in targets
                ]
    return tuple(episodes)
