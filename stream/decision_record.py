"""The values of ``rigcanary.decisions``: what is decided, in the shape that others see."""

import hashlib
from typing import Any, Final

from contract.times import rfc3339
from stream.budget import Transition
from stream.state import Episode, NodeState

HORIZON_SECONDS: Final = 14_400
"""The risk that decides is that of a failure within the next 240 minutes."""

Decision = dict[str, Any]


def identifier(prefix: str, *parts: object) -> str:
    """The same parts give the same id, on every worker and after every restart."""
    text = "\n".join(str(p) for p in parts)
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _decision(
    kind: str, decision_id: str, at_ms: int, data: dict[str, Any], *, dry_run: bool
) -> Decision:
    return {
        "schema": "rigcanary.decision/1",
        "decision_id": decision_id,
        "type": kind,
        "dry_run": dry_run,
        "decided_ms": at_ms,
        "data": {**data, "decision_id": decision_id, "decided_at": rfc3339(at_ms)},
    }


def _subject(state: NodeState, device: str | None, episode: Episode) -> dict[str, Any]:
    return {
        "site": state.site,
        "node": state.node,
        "device": device,
        "episode_id": episode.episode_id,
        "cause": episode.cause,
    }


def requested(
    state: NodeState,
    device: str | None,
    episode: Episode,
    at_ms: int,
    *,
    observed_ms: int,
    health: float,
    model_version: str,
    dry_run: bool,
) -> Decision:
    """``migration.requested``."""
    decision_id = identifier("dec", episode.episode_id, "migration.requested", dry_run)
    data = _subject(state, device, episode) | {
        "rule": episode.rule,
        "risk": round(episode.risk, 6),
        "risk_horizon_seconds": HORIZON_SECONDS,
        "health_score": round(health, 2),
        "evidence": list(episode.evidence),
        "observed_at": rfc3339(observed_ms),
        "model_version": model_version,
    }
    if episode.repeat:
        data["repeat_offender"] = True
    return _decision("migration.requested", decision_id, at_ms, data, dry_run=dry_run)


def about(
    kind: str,
    state: NodeState,
    device: str | None,
    episode: Episode,
    at_ms: int,
    reason: str,
    /,
    *,
    dry_run: bool = False,
    part: object = "",
    **more: Any,
) -> Decision:
    """``device.quarantined``, ``device.released`` or ``migration.withdrawn`` of an episode.

    ``part`` tells several of one kind in an episode apart.
    """
    decision_id = identifier("dec", episode.episode_id, kind, *([part] if part else []))
    data = _subject(state, device, episode) | {"reason": reason, **more}
    return _decision(kind, decision_id, at_ms, data, dry_run=dry_run)


def of_breaker(transition: Transition) -> Decision:
    """``breaker.opened`` or ``breaker.closed``; it travels with the node that made it trip."""
    decision_id = identifier("dec", transition.type, transition.site, transition.at_ms)
    data = dict(transition.data)
    return _decision(transition.type, decision_id, transition.at_ms, data, dry_run=False)
