"""Which card an alert of Alertmanager or Grafana speaks of. Pure.

Labels are tried from the surest to the vaguest: ``UUID``/``uuid`` (dcgm-exporter writes the
card's UUID there and only ``nvidia0`` into ``device``), ``device`` as rigcanary's own metrics
spell it, ``gpu`` as the index on the node, and the node alone. A ``device`` that is no card of
the node (``sda``, ``eth0``) is not taken for one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runner.placement import NodeView, Place

NODE_LABELS: Final = ("node", "Hostname", "hostname")
"""``Hostname`` is dcgm-exporter's."""
CARD_LABELS: Final = ("UUID", "uuid", "device")
NO_DATA_ALERTS: Final = frozenset({"DatasourceNoData", "DatasourceError"})
"""Names under which Grafana says that a rule had nothing to look at: no card is ill then."""
_NOT_A_CARD: Final = ("nvidia", "/dev/", "tenstorrent")


@dataclass(frozen=True)
class Target:
    """A card (``device`` None: a node), or why there is none."""

    node: str | None
    device: str | None
    problem: str = ""


def find_target(
    labels: Mapping[str, str], nodes: Sequence[NodeView], places: Collection[Place]
) -> Target:
    """The card or node that an alert's labels name.

    ``places``: cards known beyond the nodes' lists, from running jobs and cordons.
    """
    if labels.get("alertname") in NO_DATA_ALERTS:
        return Target(None, None, "says that data is missing, not that a card is ill")
    by_name = {node.name: node for node in nodes}
    named = _node(labels, by_name)
    known = {Place(n.name, d) for n in nodes for d in n.devices}
    known |= {place for place in places if place.device is not None}
    for label in CARD_LABELS:
        value = labels.get(label)
        if not value:
            continue
        homes = sorted({place.node for place in known if place.device == value})
        if named is not None and named.name in homes:
            return Target(named.name, value)
        if len(homes) == 1 and named is None:
            return Target(homes[0], value)
        if len(homes) > 1:
            return Target(None, None, f"{label}={value} is on several nodes; add the label node")
    if named is None:
        return Target(None, None, "its labels name no node or card that is known here")
    index = labels.get("gpu", "")
    if index.isdecimal() and int(index) < len(named.devices):
        return Target(named.name, named.devices[int(index)])
    for label in CARD_LABELS:
        value = labels.get(label)
        if value and not value.startswith(_NOT_A_CARD):
            if named.devices:
                return Target(None, None, f"{label}={value} is no card of {named.name}")
            return Target(named.name, value)
    if index:
        return Target(None, None, f"gpu={index}: the cards of {named.name} are not listed")
    return Target(named.name, None)


def _node(labels: Mapping[str, str], by_name: Mapping[str, NodeView]) -> NodeView | None:
    site = labels.get("site")
    for label in NODE_LABELS:
        value = labels.get(label)
        if not value:
            continue
        for name in (f"{site}/{value}" if site else value, value):
            if name in by_name:
                return by_name[name]
    return None
