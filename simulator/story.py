"""A story: which rigs there are, what breaks when, and what merely looks like it.

A story is a value; playing it is the work of :mod:`simulator.rig`.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2s
from typing import Literal

from contract.errors import ConfigError
from simulator.cards import CARD_MODELS, CardModel
from simulator.harmless import Episode

Domain = Literal["default", "varied", "wide"]


@dataclass(frozen=True, slots=True)
class Rig:
    """A machine and what was fitted to it: ADC on the 12 V rail, accelerometers, inlet probe."""

    node: str
    adc: bool = True
    accelerometer: bool = True
    inlet: bool = True


@dataclass(frozen=True, slots=True)
class Card:
    """One card: its name to the world, its place, its model and its batch."""

    device: str
    node: str
    index: int
    model: str
    batch: str = ""
    wear: float = 0.3

    @property
    def card_model(self) -> CardModel:
        """The nominal constants of this card's model."""
        return CARD_MODELS[self.model]


@dataclass(frozen=True, slots=True)
class Failure:
    """A card's end: seconds from the story's start, and how long before it began to show."""

    device: str
    node: str
    kind: str
    failed_at_seconds: float
    ramp_seconds: float = 0.0


@dataclass(frozen=True)
class Story:
    """Everything that is decided before time runs. ``duration_seconds`` is its length."""

    site: str
    seed: int
    duration_seconds: float
    rigs: tuple[Rig, ...]
    devices: tuple[Card, ...]
    failures: tuple[Failure, ...]
    episodes: tuple[Episode, ...] = ()
    domain: Domain = "default"
    training_nodes: tuple[str, ...] = ()
    """Rigs on which one training job runs all the time."""

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The names of the rigs, in order."""
        return tuple(rig.node for rig in self.rigs)


def device_name(seed: int, site: str, node: str, index: int) -> str:
    """A card's name, ``GPU-`` and eight hexadecimal digits."""
    text = f"{seed}/{site}/{node}/{index}".encode()
    return f"GPU-{blake2s(text, digest_size=4).hexdigest()}"


def rig_name(number: int) -> str:
    """``rig001`` for the first rig (number 0)."""
    return f"rig{number + 1:03d}"


_MINUTE = 60.0
_DEMO_MODELS = ("GeForce RTX 3090", "Blackhole p150a", "RTX A6000", "GeForce GTX 1070 Ti")
_DEMO_FAILURES = (
    # kind, fails at, begins to show: minutes
    ("vrm_capacitor", 150.0, 80.0),
    ("fan_bearing", 172.0, 92.0),
    ("memory_decay", 200.0, 112.0),
    ("detach", 224.0, 130.0),
)


def _demo_places(rigs: int, cards: int) -> list[tuple[int, int]]:
    """Rig and card number of each failure; the first is where the demo's training job runs."""
    places = [(0, 0)]
    for i in range(len(_DEMO_FAILURES) - 1):
        rig = 1 + i * (rigs - 1) // 3 if rigs > 1 else 0
        start = (3 * i + 2) % cards
        free = [c for c in (*range(start, cards), *range(start)) if (rig, c) not in places]
        if free:
            places.append((rig, free[0]))
    return places


def demo_story(rigs: int = 16, cards: int = 8, seed: int = 7, site: str = "demo") -> Story:
    """The demo: four hours in which four cards fail and a dozen things only look like it.

    The first card of the first rig fails after 150 minutes. With fewer than four cards there
    are fewer failures.

    Raises:
        ConfigError: when there are no rigs or no cards.
    """
    if rigs < 1 or not 1 <= cards <= 16:
        raise ConfigError(f"rigs must be 1 or more and cards 1 to 16, not {rigs} and {cards}")
    places = _demo_places(rigs, cards)
    model_of = [_DEMO_MODELS[r % len(_DEMO_MODELS)] for r in range(rigs)]
    failures: list[Failure] = []
    special: dict[tuple[int, int], str] = {}
    for (kind, failed, onset), (r, c) in zip(_DEMO_FAILURES, places, strict=False):
        # A fan needs a card that has one, decaying memory one that counts its errors.
        if kind == "memory_decay":
            special[r, c] = "RTX A6000"
        node = rig_name(r)
        failures.append(
            Failure(
                device_name(seed, site, node, c),
                node,
                kind,
                failed * _MINUTE,
                (failed - onset) * _MINUTE,
            )
        )
    machines = tuple(
        Rig(rig_name(r), adc=r % 3 != 1 or r == 1, accelerometer=r % 4 != 2, inlet=r % 5 != 4)
        for r in range(rigs)
    )
    devices = tuple(
        Card(device_name(seed, site, rig.node, c), rig.node, c, special.get((r, c), model_of[r]))
        for r, rig in enumerate(machines)
        for c in range(cards)
    )
    return Story(
        site,
        seed,
        240 * _MINUTE,
        machines,
        devices,
        tuple(failures),
        _demo_episodes(devices, {f.node for f in failures}),
        training_nodes=(rig_name(0),),
    )


def _demo_episodes(devices: tuple[Card, ...], sick_nodes: set[str]) -> tuple[Episode, ...]:
    """Harmless things, on rigs where nothing fails."""
    healthy = [card for card in devices if card.node not in sick_nodes]
    if not healthy:
        return ()
    counting = [card for card in healthy if card.card_model.ecc] or healthy
    nodes = sorted({card.node for card in healthy})

    def one(kind: str, card: Card, start: float, minutes: float, size: float) -> Episode:
        return Episode(kind, card.node, card.device, start * _MINUTE, minutes * _MINUTE, size)

    def rig(kind: str, n: int, start: float, minutes: float, size: float) -> Episode:
        node = nodes[n % len(nodes)]
        return Episode(kind, node, None, start * _MINUTE, minutes * _MINUTE, size)

    def pick(cards: list[Card], share: float) -> Card:
        return cards[int(share * (len(cards) - 1))]

    return (
        rig("air_conditioning", 0, 85, 70, 0.5),
        rig("air_conditioning", 1, 86, 70, 0.5),
        one("load_step", pick(healthy, 0.35), 100, 30, 1.0),
        one("ecc_burst", pick(counting, 0.6), 118, 2, 0.5),
        one("sensor_glitch", pick(healthy, 0.8), 126, 1, 0.5),
        rig("cleaning", 4, 140, 100, 0.6),
        one("fan_curve", pick(healthy, 0.5), 155, 240, 0.6),
        rig("counter_reset", 3, 165, 0.1, 0.5),
        rig("shaken_rack", 5, 180, 4, 0.5),
        rig("load_step", 2, 190, 25, 0.0),
    )
