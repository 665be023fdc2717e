"""What the fleet looks like right now, for the web page and the metrics: bounded and pure.

It is fed the values of ``rigcanary.minutes``, ``rigcanary.risks``, ``rigcanary.decisions`` and
``rigcanary.events`` and keeps the newest of each device. Two clocks decide who is gone: event
time (a device that its node no longer mentions, or a node behind the rest of its site) and the
observer's own, handed in by :meth:`FleetView.tick` (nothing came at all).
"""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from contract.signals import STATES
from stream.fleet_device import DeviceView, number, row_state, row_values
from stream.fleet_page import SORTS, Entry, shown, text
from stream.lifecycle import STATES as LIFE_STATES

DECISIONS_KEPT: Final = 200
MAX_DEVICES: Final = 200_000
BEHIND_SECONDS: Final = 900
"""A node this far (event time) behind the newest minute of its site is silent; well over the five
minutes that another node's clock may run ahead."""
SILENT_SECONDS: Final = 300.0
"""A device without news for this long (observer's time) is gone."""
SWEEP_SECONDS: Final = 5.0
FORGET_SECONDS: Final = 3_600
"""A gone device is remembered as absent for this long on either clock, then forgotten."""

VIEW_STATES: Final = (*STATES, "absent", *LIFE_STATES[1:])
LIFE_AFTER: Final[Mapping[str, str]] = {
    "migration.requested": "quarantined",
    "device.quarantined": "quarantined",
    "device.released": "healthy",
}
"""What a decision makes of a card, unless it says so itself (``state``)."""


@dataclass(slots=True)
class _Node:
    """``seen_at`` is the observer's time of the last news, ``None`` if since its last look.

    ``newest`` is the number of devices in the newest minute.
    """

    minute: int = 0
    newest: int = 0
    seen_at: float | None = None
    devices: dict[str, DeviceView] = field(default_factory=dict)


class FleetView:
    """Newest minute, risk and decision of every device; at most ``max_devices`` of them.

    ``refused`` counts devices that did not fit. What feeds it costs microseconds a device;
    ``states`` and ``page`` are linear in the devices and may run in another thread meanwhile.
    """

    def __init__(self, *, max_devices: int = MAX_DEVICES) -> None:
        self._nodes: dict[tuple[str, str], _Node] = {}
        self._site_minute: dict[str, int] = {}
        self._breakers: dict[str, bool] = {}
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_KEPT)
        self._max_devices = max_devices
        self._count = 0
        self._now = 0.0
        self._swept_at: float | None = None
        self.refused = 0

    def __len__(self) -> int:
        return self._count

    def tick(self, now_seconds: float) -> None:
        """Tell the observer's time (any steadily rising seconds) and forget what is long gone.

        Call it every few seconds and before reading.
        """
        if self._swept_at is not None and 0 <= now_seconds - self._swept_at < SWEEP_SECONDS:
            return
        self._now = self._swept_at = now_seconds
        for key, node in list(self._nodes.items()):
            if node.seen_at is None:
                node.seen_at = now_seconds
            oldest = self._site_minute.get(key[0], 0) - FORGET_SECONDS
            if now_seconds - node.seen_at > FORGET_SECONDS or node.minute < oldest:
                self.drop_node(*key)
            elif node.newest < len(node.devices):
                for device in [d for d in node.devices.values() if d.minute < oldest]:
                    del node.devices[device.device]
                    self._count -= 1
        sites = {site for site, _ in self._nodes}
        for site in [s for s in self._site_minute if s not in sites]:
            del self._site_minute[site]
            self._breakers.pop(site, None)

    def drop_node(self, site: str, node: str) -> None:
        """Forget a node at once (its partition went to another worker)."""
        gone = self._nodes.pop((site, node), None)
        self._count -= len(gone.devices) if gone else 0

    def minute(self, value: Mapping[str, Any]) -> None:
        """Take a value of ``rigcanary.minutes``; an older minute than the known changes nothing."""
        site, node_name, minute = value["site"], value["node"], int(value["minute"])
        node = self._nodes.get((site, node_name))
        if node is None:
            node = self._nodes[site, node_name] = _Node()
        if minute >= node.minute:
            node.minute, node.newest = minute, len(value["devices"])
            node.seen_at = None
        self._site_minute[site] = max(self._site_minute.get(site, 0), minute)
        for row in value["devices"]:
            device = self._device(node, site, node_name, row["device"])
            if device is None or minute < device.minute:
                continue
            device.minute = minute
            if device.event_ts < minute:  # else an event inside this minute knew better
                device.reported_state = row_state(row, device.reported_state)
            device.values = row_values(row)
            if isinstance(row.get("index"), int):
                device.index = row["index"]
            for name in ("vendor", "model", "serial", "driver"):
                text = row.get(name)
                if isinstance(text, str):
                    device.info[name] = text[:128]

    def risk(self, value: Mapping[str, Any]) -> None:
        """Take a value of ``rigcanary.risks``; devices without a minute yet are skipped."""
        node = self._nodes.get((value["site"], value["node"]))
        minute = int(value["minute"])
        for row in value["devices"] if node is not None else ():
            device = node.devices.get(row["device"]) if node is not None else None
            if device is None or minute < device.risk_minute:
                continue
            risk = number(row.get("risk_240m"))
            if minute == device.risk_minute and device.risks:
                device.risks[-1] = risk
            else:
                device.risks.append(risk)
            device.risk_minute = minute
            device.status = row.get("status")
            device.completeness = number(row.get("completeness"))
            device.risk = risk
            device.risk_15m = number(row.get("risk_15m"))
            device.risk_60m = number(row.get("risk_60m"))
            device.health_score = number(row.get("health_score"))
            parts = row.get("health_parts")
            device.health_parts = dict(parts) if isinstance(parts, dict) else {}
            if isinstance(row.get("state"), str):
                device.life = row["state"]

    def challenger(self, site: str, name: str, risks: Mapping[str, float]) -> None:
        """What the challenger says of a node's devices: risk within 240 minutes."""
        node = self._nodes.get((site, name))
        for device, risk in risks.items() if node is not None else ():
            known = node.devices.get(device) if node is not None else None
            if known is not None:
                known.challenger_risk = risk

    def forget_challenger(self) -> None:
        """There is another challenger, or none."""
        for node in self._nodes.values():
            for device in node.devices.values():
                device.challenger_risk = None

    def decision(self, value: Mapping[str, Any]) -> None:
        """Take a value of ``rigcanary.decisions``; the same ``decision_id`` again replaces it."""
        data = value.get("data") or {}
        kind = value["type"]
        known = [d for d in self._decisions if d["decision_id"] == value["decision_id"]]
        for old in known:
            self._decisions.remove(old)
        self._decisions.append(
            {
                "decision_id": value["decision_id"],
                "type": kind,
                "dry_run": bool(value.get("dry_run")),
                "data": dict(data),
            }
        )
        if kind in ("breaker.opened", "breaker.closed"):
            self._breakers[str(data.get("site"))] = kind == "breaker.opened"
        elif kind in LIFE_AFTER and not value.get("dry_run"):
            life = str(data.get("state") or LIFE_AFTER[kind])
            for device in self._targets(data):
                if data.get("device") is None:
                    device.node_out = life == "quarantined"
                else:
                    device.life = life

    def life(self, site: str, node: str, device: str, state: str) -> None:
        """Tell a card's state (``stream.lifecycle``); unknown cards are skipped."""
        known = self._nodes.get((site, node))
        if known is not None and device in known.devices:
            known.devices[device].life = state

    def event(self, value: Mapping[str, Any]) -> None:
        """Take a value of ``rigcanary.events``: a lost card is gone before its minute closes."""
        node = self._nodes.get((value["site"], value["node"]))
        device = node.devices.get(value.get("device") or "") if node is not None else None
        states = {
            "device_lost": "lost",
            "device_unresponsive": "unresponsive",
            "device_returned": "ok",
        }
        if device is not None and value.get("type") in states and value["ts"] >= device.minute:
            device.reported_state = states[value["type"]]
            device.event_ts = float(value["ts"])

    def devices(self) -> list[DeviceView]:
        """All known devices, gone ones included, in no order."""
        nodes = list(self._nodes.values())
        return [device for node in nodes for device in list(node.devices.values())]

    def states(self) -> list[Entry]:
        """Every device with one word of :data:`VIEW_STATES`, and whether it is there.

        A device is there when its node's newest minute mentions it, it is not lost, and its node
        is not silent. The word is what the node reports; an ``ok`` card shows its
        state of life unless that is ``healthy``; one that fell silent is ``absent``.
        """
        found: list[Entry] = []
        for (site, _), node in list(self._nodes.items()):
            quiet = self._now - node.seen_at if node.seen_at is not None else 0.0
            behind = self._site_minute.get(site, 0) - node.minute
            heard = quiet <= SILENT_SECONDS and behind <= BEHIND_SECONDS
            for device in list(node.devices.values()):
                state = device.reported_state
                if state == "lost":
                    found.append((device, state, False))
                elif not heard or device.minute < node.minute:
                    found.append((device, "absent", False))
                else:
                    life = "quarantined" if device.node_out else device.life
                    word = life if state == "ok" and life != "healthy" else state
                    found.append((device, word, True))
        return found

    def breakers(self) -> dict[str, bool]:
        """Whether the circuit breaker is open, of every site with a node in view."""
        return dict.fromkeys(sorted({site for site, _ in tuple(self._nodes)}), False) | dict(
            self._breakers
        )

    def decisions(self, limit: int = DECISIONS_KEPT) -> list[dict[str, Any]]:
        """The last decisions, newest first."""
        return list(reversed(self._decisions))[: max(limit, 0)]

    def page(
        self, *, offset: int = 0, limit: int = 100, sort: str = "risk", search: str = ""
    ) -> dict[str, Any]:
        """One page of the fleet as ``/api/fleet`` shows it.

        ``sort`` is ``risk`` (highest first), ``health`` (lowest first) or ``name``. ``search``
        keeps the devices whose site, node, device, model or state holds it, without regard to case.

        Raises:
            KeyError: for another ``sort``.
        """
        order = SORTS[sort]
        everything = self.states()
        counts = dict.fromkeys(VIEW_STATES, 0)
        for _, state, _ in everything:
            counts[state] += 1
        needle = search.casefold()
        chosen = [e for e in everything if needle in text(e)] if needle else everything
        top = heapq.nsmallest(offset + limit, chosen, key=order)
        return {
            "newest_minute": max(list(self._site_minute.values()), default=None),
            "devices_total": len(everything),
            "nodes_total": len(self._nodes),
            "states": counts,
            "matching": len(chosen),
            "offset": offset,
            "limit": limit,
            "sort": sort,
            "breakers_open": sorted(site for site, is_open in self.breakers().items() if is_open),
            "devices": [shown(*entry) for entry in top[offset:]],
        }

    def _device(self, node: _Node, site: str, name: str, device: str) -> DeviceView | None:
        known = node.devices.get(device)
        if known is None and self._count < self._max_devices:
            known = node.devices[device] = DeviceView(site, name, device)
            self._count += 1
        elif known is None:
            self.refused += 1
        return known

    def _targets(self, data: Mapping[str, Any]) -> Iterable[DeviceView]:
        node = self._nodes.get((str(data.get("site")), str(data.get("node"))))
        if node is None:
            return ()
        if data.get("device") is None:
            return list(node.devices.values())
        device = node.devices.get(data["device"])
        return () if device is None else (device,)
