"""The load: which node says what when. Values come from the fleet simulator.

A few healthy simulated rigs are sampled once a tick and their readings shared by all nodes,
each under its own names: the values vary as real ones do, and the generator stays cheap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from contract.message import TELEMETRY_SCHEMA
from contract.topics import MqttTopic, node_key
from simulator.live import SimulatedRig
from simulator.story import demo_story

BASE_RIGS: Final = 4
UNCORRECTED: Final = "ecc_uncorrected_total"
_RATE: Final = "temperature_rate_celsius_per_second"
_DEVICE_KEYS: Final = ("device", "index")


@dataclass(frozen=True, slots=True)
class Node:
    """One simulated node of the load; ``phase`` (0–1) is its place within an interval."""

    site: str
    name: str
    devices: tuple[str, ...]
    phase: float
    base: int

    @property
    def key(self) -> str:
        return node_key(self.site, self.name)

    @property
    def topic(self) -> str:
        return str(MqttTopic(self.site, self.name, "telemetry"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent: history first (as fast as it is taken), then in real time.

    Times are Unix seconds. History runs from ``start`` at ``slow_seconds`` cadence to
    ``fast_from`` and then at ``interval_seconds``, which goes on for good.
    """

    cards: int
    cards_a_node: int
    nodes_a_site: int
    interval_seconds: float
    slow_seconds: float
    start: float
    fast_from: float
    run: str

    def nodes(self) -> list[Node]:
        """All nodes; the last one may have fewer cards."""
        count = -(-self.cards // self.cards_a_node)
        found = []
        for n in range(count):
            site, name = f"{self.run}-s{n // self.nodes_a_site:04d}", f"rig{n:05d}"
            width = min(self.cards_a_node, self.cards - n * self.cards_a_node)
            devices = tuple(f"GPU-{n:05d}-{d}" for d in range(width))
            found.append(Node(site, name, devices, n / count, n % BASE_RIGS))
        return found

    @property
    def slow_ticks(self) -> int:
        """Ticks of the history at the slow cadence."""
        return round((self.fast_from - self.start) / self.slow_seconds)

    def ticks(self) -> Iterator[tuple[float, float]]:
        """``(start of the tick, its interval)``, without end."""
        for k in range(self.slow_ticks):
            yield self.start + k * self.slow_seconds, self.slow_seconds
        k = 0
        while True:
            yield self.fast_from + k * self.interval_seconds, self.interval_seconds
            k += 1


class Bodies:
    """Readings of the base rigs, as JSON without the keys that differ from node to node.

    ``at(seconds)`` gives ``bodies[rig][card]`` for an instant from the start on; instants must
    not fall.
    """

    def __init__(self, cards_a_node: int) -> None:
        story = demo_story(rigs=16, cards=cards_a_node)
        troubled = {f.node for f in story.failures} | {e.node for e in story.episodes}
        names = [name for name in story.nodes if name not in troubled]
        self._rigs = [SimulatedRig(story, names[i % len(names)]) for i in range(BASE_RIGS)]
        self._before: dict[tuple[int, int], tuple[float, float]] = {}

    def at(self, seconds: float) -> list[list[bytes]]:
        """Sample every base rig."""
        return [
            [self._body(r, c, seconds, device) for c, device in enumerate(rig.sample(seconds))]
            for r, rig in enumerate(self._rigs)
        ]

    def _body(self, rig: int, card: int, seconds: float, device: Mapping[str, Any]) -> bytes:
        temperature = device["temperature_celsius"]
        rate = None
        if temperature is not None:
            at, before = self._before.get((rig, card), (seconds, temperature))
            if seconds > at:
                rate = round((temperature - before) / (seconds - at), 4)
            self._before[rig, card] = (seconds, temperature)
        rest = {k: v for k, v in device.items() if k not in (*_DEVICE_KEYS, UNCORRECTED)}
        return orjson.dumps({**rest, _RATE: rate})[1:]  # its opening brace is written by compose


def compose(
    node: Node,
    bodies: list[bytes],
    *,
    boot_id: str,
    seq: int,
    ts: float,
    interval: float,
    uncorrected: Mapping[str, int],
) -> bytes:
    """One telemetry message; ``uncorrected`` holds the error counts of cards that have some."""
    head = (
        f'{{"schema":"{TELEMETRY_SCHEMA}","site":"{node.site}","node":"{node.name}",'
        f'"boot_id":"{boot_id}","seq":{seq},"ts":{ts:.3f},"interval_seconds":{interval:g},'
        '"devices":['
    ).encode()
    entries = (
        b'{"device":"%b","index":%d,"%b":%d,'
        % (name.encode(), i, UNCORRECTED.encode(), uncorrected.get(name, 0))
        + body
        for i, (name, body) in enumerate(zip(node.devices, bodies, strict=False))
    )
    return head + b",".join(entries) + b"]}"
