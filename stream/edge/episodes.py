"""The stories of the cards, as ``/api/episodes`` and ``rigcanary episodes`` show them."""

from collections.abc import Iterable
from typing import Any

from contract.times import rfc3339
from stream.edge.partition import Partition
from stream.state import Episode, NodeState


def episodes(
    partitions: Iterable[Partition],
    *,
    site: str = "",
    node: str = "",
    device: str = "",
    open_only: bool = False,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Stories of the nodes that this worker owns, those that spoke last first; "" is any."""
    found: list[tuple[int, NodeState, str | None, Episode]] = []
    for partition in partitions:
        for state in list(partition.states.values()):
            if (site and state.site != site) or (node and state.node != node):
                continue
            stories = state.episodes() + ([] if open_only else state.closed)
            found += [
                (max(e.last_sign_ms, e.closed_ms), state, name, e)
                for name, e in stories
                if not device or name == device
            ]
    found.sort(key=lambda item: (-item[0], item[3].episode_id))
    return [_shown(state, name, episode) for _, state, name, episode in found[:limit]]


def _shown(state: NodeState, device: str | None, episode: Episode) -> dict[str, Any]:
    card = state.devices.get(device) if device is not None else None
    return {
        "episode_id": episode.episode_id,
        "site": state.site,
        "node": state.node,
        "device": device,
        "cause": episode.cause,
        "rules": episode.rules,
        "state": card.state if card is not None else None,
        "open": not episode.closed_ms,
        "migration": "waiting" if episode.waits else episode.migration,
        "repeat_offender": episode.repeat,
        "opened_at": rfc3339(episode.opened_ms),
        "last_sign_at": rfc3339(episode.last_sign_ms),
        "closed_at": rfc3339(episode.closed_ms) if episode.closed_ms else None,
        "log": [
            {"at": rfc3339(entry["at_ms"]), **{k: v for k, v in entry.items() if k != "at_ms"}}
            for entry in episode.log
        ],
        "log_dropped": episode.dropped,
    }
