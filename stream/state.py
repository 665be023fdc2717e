"""What scoring and policy remember of a node; one record of the second table."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from stream.rules import RuleMemory

_VERSION: Final = 1


@dataclass(slots=True)
class Episode:
    """One story of one device (or node), from the first sign on."""

    episode_id: str
    cause: str
    opened_ms: int
    last_sign_ms: int
    migration: str = "held"
    """``held`` by the budget, ``requested``, or ``dry_run``."""
    rules: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DeviceState:
    """Alarm state of one device."""

    recent: list[float] = field(default_factory=list)
    raised: bool = False
    risk: float | None = None
    seen_ms: int = 0
    episode: Episode | None = None


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

    def device(self, name: str) -> DeviceState:
        """The state of one device, new if it was not known."""
        state = self.devices.get(name)
        if state is None:
            state = self.devices[name] = DeviceState()
        return state


def pack(state: NodeState) -> bytes:
    """The state as JSON bytes for the table."""
    return orjson.dumps({"v": _VERSION, **asdict(state)})


def unpack(data: bytes) -> NodeState:
    """The inverse of :func:`pack`.

    Raises:
        ValueError: when the bytes are not of this version.
    """
    value: dict[str, Any] = orjson.loads(data)
    if value.pop("v") != _VERSION:
        raise ValueError(f"node state of another version; version {_VERSION} is understood")
    devices = {
        name: DeviceState(**{**d, "episode": _episode(d["episode"])})
        for name, d in value.pop("devices").items()
    }
    return NodeState(
        devices=devices,
        node_episode=_episode(value.pop("node_episode")),
        rules=RuleMemory(**value.pop("rules")),
        outbox=[Outgoing(**o) for o in value.pop("outbox")],
        **value,
    )


def _episode(value: dict[str, Any] | None) -> Episode | None:
    return Episode(**value) if value is not None else None
