"""Small questions about an episode, and how one begins."""

from typing import Final

from stream import decision_record as record
from stream import lifecycle
from stream.rules import Sign
from stream.state import DeviceState, Episode, NodeState


def open_episode(state: NodeState, card: DeviceState | None, sign: Sign) -> Episode:
    """A new story of a card, or of the node (``card`` None), that begins with this sign."""
    identifier = record.identifier("ep", state.site, state.node, sign.device, sign.observed_ms)
    episode = Episode(identifier, sign.cause, sign.observed_ms, sign.observed_ms)
    if card is None:
        state.node_episode = episode
    else:
        card.episode = episode
        if card.state == "healthy":
            lifecycle.move(card, "suspect", sign.observed_ms)
        elif card.state == "probation":
            card.load_minutes = 0
    return episode


def note_once(episode: Episode, at_ms: int, what: str, *, reason: str) -> None:
    """Not again each minute."""
    last = episode.log[-1] if episode.log else {}
    if (last.get("what"), last.get("reason")) != (what, reason):
        episode.note(at_ms, what, reason=reason)


def is_gone(episode: Episode) -> bool:
    """The driver says that the card is lost, or it vanished: nothing on it can be harmed."""
    return episode.cause == "lost" and episode.rule == "lost"


def weight(state: NodeState, device: str | None) -> int:
    """How many devices a move takes out of service."""
    return 1 if device is not None else max(1, len(state.devices))


_RANK: Final = {"lost": 0, "node_lost": 1, "threshold": 2, "predicted": 3}


def priority(state: NodeState, device: str | None, episode: Episode) -> tuple[float, int, float]:
    """What goes first: the higher risk, then the harder cause, then the model's opinion."""
    cards = [state.devices[device]] if device is not None else list(state.devices.values())
    own = max((card.risk or 0.0 for card in cards), default=0.0)
    return -episode.risk, _RANK.get(episode.cause, 9), -own
