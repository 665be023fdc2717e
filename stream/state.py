"""What scoring and policy remember of a node; one record of the second table."""

from dataclasses import dataclass, field, fields
from typing import Any, Final

import orjson

from contract.decision import Evidence
from stream.rules import RuleMemory

_VERSION: Final = 1
MAX_LOG: Final = 48
"""Entries of a story that is open."""


@dataclass(slots=True)
class Episode:
    """One story of one device (or node), from the first sign on."""

    episode_id: str
    cause: str
    opened_ms: int
    last_sign_ms: int
    migration: str = "held"
    """``held`` by the budget, ``requested``, ``dry_run``, or ``manual``: quarantined by a person,
    no move was asked for."""
    rules: list[str] = field(default_factory=list)
    """Every rule that spoke; ``manual`` when a person did."""
    rule: str = ""
    """The one that asks for the move."""
    moved_ms: int = 0
    closed_ms: int = 0
    risk: float = 1.0
    evidence: list[Evidence] = field(default_factory=list)
    waits: bool = False
    """Whether the budget held its move and it is asked for again in order of risk."""
    repeat: bool = False
    log: list[dict[str, Any]] = field(default_factory=list)
    """What happened: ``{"at_ms", "what", …}``; the oldest and the newest when it is much."""
    dropped: int = 0

    def note(self, at_ms: int, what: str, **detail: Any) -> None:
        """Append to the story; from the middle of a long one entries are dropped and counted."""
        self.log.append({"at_ms": at_ms, "what": what, **detail})
        if len(self.log) > MAX_LOG:
            del self.log[MAX_LOG // 2]
            self.dropped += 1


@dataclass(slots=True)
class DeviceState:
    """Alarm state of one device."""

    recent: list[float] = field(default_factory=list)
    raised: bool = False
    risk: float | None = None
    seen_ms: int = 0
    episode: Episode | None = None
    state: str = "healthy"
    """One of ``stream.lifecycle.STATES``."""
    state_ms: int = 0
    load_minutes: int = 0
    """Minutes under load without a sign since probation began."""
    past_ms: list[int] = field(default_factory=list)
    """When it was quarantined within the last ``repeat_days``."""
    model: str | None = None
    history: str = ""
    """What the predictor remembers of the card (``stream.edge.card_histories``)."""


@dataclass(slots=True)
class Outgoing:
    """A webhook that some receivers have not answered yet. ``body`` is what will be signed."""

    webhook_id: str
    type: str
    device: str | None
    body: str
    pending: list[str]
    created_at: float
    """Unix seconds of the wall clock, from which the 24 hours of retries count."""


@dataclass(slots=True)
class NodeState:
    """Everything that must survive a restart beside the minute records."""

    site: str
    node: str
    scored_minute_ms: int = 0
    newest_ms: int = 0
    live: bool = False
    """Whether a receiver has answered ``test.ping`` on this site once: no dry run any more."""
    devices: dict[str, DeviceState] = field(default_factory=dict)
    node_episode: Episode | None = None
    rules: RuleMemory = field(default_factory=RuleMemory)
    outbox: list[Outgoing] = field(default_factory=list)
    closed: list[tuple[str | None, Episode]] = field(default_factory=list)
    """The last stories that ended, with their device; oldest first."""
    commands: list[str] = field(default_factory=list)
    """Ids of the last commands, so that one that comes twice counts once."""
    silences: list[dict[str, Any]] = field(default_factory=list)
    """Silences by a person: fields of ``stream.policy.Silence``."""
    breaker_opened_ms: int = 0
    breaker_closed_ms: int = 0
    """When this node's decisions last opened or closed its site's breaker."""

    def device(self, name: str) -> DeviceState:
        """The state of one device, new if it was not known."""
        state = self.devices.get(name)
        if state is None:
            state = self.devices[name] = DeviceState()
        return state

    def episode(self, name: str | None) -> Episode | None:
        """The open story of a device, or of the node (None)."""
        if name is None:
            return self.node_episode
        device = self.devices.get(name)
        return device.episode if device is not None else None

    def episodes(self) -> list[tuple[str | None, Episode]]:
        """Every open story with its device; None is the node's."""
        found: list[tuple[str | None, Episode]] = [
            (name, device.episode) for name, device in self.devices.items() if device.episode
        ]
        return found + ([(None, self.node_episode)] if self.node_episode else [])


def pack(state: NodeState) -> bytes:
    """The state as JSON bytes for the table."""
    return orjson.dumps({"v": _VERSION, **{f.name: getattr(state, f.name) for f in _FIELDS}})


def unpack(data: bytes) -> NodeState:
    """The inverse of :func:`pack`. Records from before a field was there get its default.

    Raises:
        ValueError: when the bytes are not of this version.
    """
    value: dict[str, Any] = orjson.loads(data)
    if value.pop("v") != _VERSION:
        raise ValueError(f"node state of another version; version {_VERSION} is understood")
    devices = {name: _device(d) for name, d in value.pop("devices").items()}
    return NodeState(
        devices=devices,
        node_episode=_episode(value.pop("node_episode")),
        rules=RuleMemory(**value.pop("rules")),
        outbox=[Outgoing(**o) for o in value.pop("outbox")],
        closed=[(name, Episode(**e)) for name, e in value.pop("closed", [])],
        **value,
    )


def _device(value: dict[str, Any]) -> DeviceState:
    device = DeviceState(**{**value, "episode": _episode(value["episode"])})
    if "state" not in value and device.episode is not None:  # from before there were states
        moved = device.episode.migration == "requested"
        device.state = "quarantined" if moved else "suspect"
        device.state_ms = device.episode.opened_ms
    return device


def _episode(value: dict[str, Any] | None) -> Episode | None:
    if value is None:
        return None
    episode = Episode(**value)
    if episode.migration == "requested" and not episode.moved_ms:
        episode.moved_ms = episode.opened_ms
    episode.rule = episode.rule or (episode.rules[-1] if episode.rules else episode.cause)
    return episode


_FIELDS: Final = fields(NodeState)
