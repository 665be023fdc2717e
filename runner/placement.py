"""Where a job's processes go. Pure and deterministic: the same question gets the same answer."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Place:
    """A card of a node; ``device`` is None where the node's cards are not listed."""

    node: str
    device: str | None

    def __str__(self) -> str:
        return self.node if self.device is None else f"{self.node}/{self.device}"

    def touches(self, node: str, device: str | None) -> bool:
        """Whether it is that card, or (device None) on that node.

        A place without a card stands for all cards of its node.
        """
        return self.node == node and (device is None or self.device in {None, device})


@dataclass(frozen=True)
class NodeView:
    """A node as placement sees it; ``cordoned_devices`` may name cards that are not listed."""

    name: str
    devices: tuple[str, ...] = ()
    cordoned: bool = False
    cordoned_devices: frozenset[str] = frozenset()

    def open_places(self) -> list[Place]:
        """Its places that are not cordoned.

        A node without a card list is one place, and closed as soon as any card of it is
        cordoned: which card a process would use is not known there.
        """
        if self.cordoned:
            return []
        if not self.devices:
            return [] if self.cordoned_devices else [Place(self.name, None)]
        return [Place(self.name, d) for d in self.devices if d not in self.cordoned_devices]


def choose(
    nodes: Iterable[NodeView],
    count: int,
    *,
    taken: Collection[Place],
    only_nodes: Collection[str] = (),
    only_devices: Collection[str] = (),
    prefer: Sequence[str] = (),
) -> tuple[Place, ...] | None:
    """``count`` places for one job, or None when there are not enough.

    Never a cordoned card; a listed card holds one process, a node without a list any number.
    First come the cards (``DEVICE`` or ``NODE/DEVICE``) and nodes of ``prefer`` in their order,
    then the nodes with the fewest cordoned cards (power and air are shared), then those with
    the fewest processes, then the order in which nodes and cards are listed. ``only_nodes`` and
    ``only_devices`` are limits when they are not empty; ``taken`` are the places in use, once
    for each process.
    """
    rank_of_preferred = {name: i for i, name in enumerate(prefer)}
    load = Counter(place.node for place in taken)
    busy = {place for place in taken if place.device is not None}
    order: dict[Place, int] = {}
    sick: dict[str, int] = {}
    for node in nodes:
        sick[node.name] = len(node.cordoned_devices)
        if only_nodes and node.name not in only_nodes:
            continue
        for place in node.open_places():
            if place in busy:
                continue
            if only_devices and place.device is not None and not _named(place, only_devices):
                continue
            order.setdefault(place, len(order))

    def cost(place: Place) -> tuple[int, int, int, int]:
        names = (place.device or "", place.node, str(place))
        preferred = min(rank_of_preferred.get(name, len(prefer)) for name in names)
        return (preferred, sick[place.node], load[place.node], order[place])

    chosen: list[Place] = []
    for _ in range(count):
        if not order:
            return None
        best = min(order, key=cost)
        chosen.append(best)
        load[best.node] += 1
        if best.device is not None:
            del order[best]
    return tuple(chosen)


def _named(place: Place, names: Collection[str]) -> bool:
    return place.device in names or str(place) in names
