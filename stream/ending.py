"""How a story ends: calm ends quarantine, load ends probation, long absence ends all."""

from typing import TYPE_CHECKING, Any, Final

from contract.minute import MINUTE_MS
from stream import decision_record as record
from stream import lifecycle
from stream.decision_record import Decision
from stream.gate import DeviceScore
from stream.policy import HEALTH_UNHEALTHY
from stream.state import Episode, NodeState
from stream.story import note_once

if TYPE_CHECKING:
    from stream.decide import Decider

DAY_MS: Final = 86_400_000
MAX_DEVICES: Final = 1_024
"""Devices of a node that are remembered at most."""
MAX_CLOSED: Final = 16
MAX_CLOSED_LOG: Final = 16


def _calm(decider: "Decider") -> str:
    return f"no sign for {decider.policy.calm_minutes} minutes"


def progress(
    decider: "Decider", state: NodeState, score: DeviceScore, health_now: float | None, at_ms: int
) -> list[Decision]:
    """Calm ends quarantine, load ends probation. Only a card that is seen can be calm."""
    card, policy = state.devices[score.device], decider.policy
    episode = card.episode
    calm, calm_ms = _calm(decider), policy.calm_minutes * MINUTE_MS
    if episode is not None and at_ms - episode.last_sign_ms >= calm_ms:
        if episode.migration not in ("requested", "manual"):
            if card.state == "suspect":
                lifecycle.move(card, "healthy", at_ms)
            return [close(decider, state, score.device, episode, at_ms, calm, dry_run=True)]
        by_hand = "manual" in episode.rules
        if card.state == "quarantined" and not episode.repeat and not by_hand:
            lifecycle.move(card, "probation", at_ms)
            episode.note(at_ms, "probation", reason=calm)
            if episode.cause in policy.serves_on_probation:
                return [close(decider, state, score.device, episode, at_ms, calm)]
        elif card.state == "quarantined":
            why = "quarantined by hand" if by_hand else "repeat offender"
            note_once(episode, at_ms, "waits for a person", reason=why)
    if card.state != "probation" or card.raised:
        return []
    if score.loaded and health_now is not None and health_now >= HEALTH_UNHEALTHY:
        card.load_minutes += 1
    if card.load_minutes < policy.probation_load_minutes or (
        episode is not None and episode.migration != "requested"
    ):
        return []
    lifecycle.move(card, "healthy", at_ms)
    if episode is None:
        return []
    reason = f"{policy.probation_load_minutes} minutes under load without a sign"
    return [close(decider, state, score.device, episode, at_ms, reason)]


def close_calm_node(decider: "Decider", state: NodeState, at_ms: int) -> list[Decision]:
    """The story of a whole node ends after calm; being scored at all shows that it speaks."""
    episode = state.node_episode
    if episode is None or at_ms - episode.last_sign_ms < decider.policy.calm_minutes * MINUTE_MS:
        return []
    dry = episode.migration != "requested"
    return [close(decider, state, None, episode, at_ms, _calm(decider), dry_run=dry)]


def close(
    decider: "Decider",
    state: NodeState,
    device: str | None,
    episode: Episode,
    at_ms: int,
    reason: str,
    *,
    dry_run: bool = False,
    **more: Any,
) -> Decision:
    """End a story with ``device.released``; it is kept among the node's last ones."""
    decider.gate.ended(state.site, state.node, device, at_ms)
    decider.waiting.drop(state.site, (state.node, device))
    if device is None:
        state.node_episode = None
    else:
        card = state.devices[device]
        card.episode, more = None, {"state": card.state, **more}
    episode.closed_ms, episode.waits, episode.evidence = at_ms, False, []
    episode.note(at_ms, "released", reason=reason, **more)
    extra = len(episode.log) - MAX_CLOSED_LOG
    if extra > 0:
        del episode.log[MAX_CLOSED_LOG // 2 : MAX_CLOSED_LOG // 2 + extra]
        episode.dropped += extra
    state.closed = [*state.closed, (device, episode)][-MAX_CLOSED:]
    return record.about(
        "device.released", state, device, episode, at_ms, reason, dry_run=dry_run, **more
    )


def forget_replaced(decider: "Decider", state: NodeState, at_ms: int) -> None:
    """Cards not seen for a day and without a story were taken out; others after long."""
    long_ms = at_ms - decider.policy.absent_days * DAY_MS
    gone = [
        name
        for name, card in state.devices.items()
        if card.seen_ms < at_ms - DAY_MS
        and (
            max(card.seen_ms, card.state_ms) < long_ms
            or (card.episode is None and card.state == "healthy" and not card.past_ms)
        )
    ]
    if len(state.devices) - len(gone) > MAX_DEVICES:
        left = sorted(
            (card.seen_ms, name) for name, card in state.devices.items() if name not in gone
        )
        gone += [name for _, name in left[: len(left) - MAX_DEVICES]]
    for name in gone:
        decider.waiting.drop(state.site, (state.node, name))
        if state.devices[name].episode is not None:
            decider.gate.ended(state.site, state.node, name, at_ms)
        del state.devices[name]
        state.rules.uncorrected.pop(name, None)
