"""From signs to decisions: one episode of one device asks for one migration."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from contract.decision import Evidence
from contract.minute import MINUTE_MS
from contract.times import rfc3339
from stream.budget import Transition
from stream.policy import Policy, RiskHysteresis, health_score
from stream.rules import Sign
from stream.state import DeviceState, Episode, NodeState

HORIZON_SECONDS: Final = 14_400
"""The risk that decides is that of a failure within the next 240 minutes."""
_SIGN_HEALTH: Final = 0.0
DAY_MS: Final = 86_400_000

Decision = dict[str, Any]


class Gate(Protocol):
    """Whether one more card of a site may be moved now (``stream.budget``)."""

    def allows(self, site: str, node: str, device: str | None, at_ms: int) -> bool:
        """Ask once; an allowed move is counted."""

    def ended(self, site: str, node: str, device: str | None, at_ms: int) -> None:
        """The episode is over: the move does not count as open any more."""

    def advance(self, sites: Iterable[str], at_ms: int) -> None:
        """Let event time pass at these sites: the breaker closes by calm."""

    def take(self) -> "list[Transition]":
        """What the breaker did since the last call."""


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """One device's scoring: risks within 15, 60 and 240 minutes, or None without enough data."""

    device: str
    completeness: float
    risk_15m: float | None
    risk_60m: float | None
    risk_240m: float | None

    @property
    def deciding(self) -> float | None:
        """The risk that the model's thresholds are for (``HORIZON_SECONDS``)."""
        return self.risk_240m


def _identifier(prefix: str, *parts: object) -> str:
    """The same parts give the same id, on every worker and after every restart."""
    text = "\n".join(str(p) for p in parts)
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


class Decider:
    """Turns signs and scorings of a node into decisions; keeps all memory in ``NodeState``."""

    def __init__(self, policy: Policy, gate: Gate, threshold: float, model_version: str) -> None:
        self.policy = policy
        self.threshold = threshold
        self.model_version = model_version
        self._gate = gate

    def restore(self, moves: Sequence[tuple[int, str, str, str | None]]) -> None:
        """Count open moves ``(at_ms, site, node, device)`` again after a restart."""
        for at_ms, site, node, device in sorted(moves, key=lambda m: (m[0], m[1:3], m[3] or "")):
            self._gate.allows(site, node, device, at_ms)
        self._gate.take()

    def on_signs(self, state: NodeState, signs: Sequence[Sign], *, dry_run: bool) -> list[Decision]:
        """Decisions that the signs of one moment ask for."""
        decisions = []
        for sign in signs:
            decision = self._on_sign(state, sign, dry_run=dry_run)
            if decision is not None:
                decisions.append(decision)
        return decisions + self._breaker()

    def _breaker(self) -> list[Decision]:
        """The breaker's own decisions; they travel with the node that made it trip."""
        decisions = []
        for transition in self._gate.take():
            decision_id = _identifier("dec", transition.type, transition.site, transition.at_ms)
            decisions.append(
                {
                    "schema": "rigcanary.decision/1",
                    "decision_id": decision_id,
                    "type": transition.type,
                    "dry_run": False,
                    "decided_ms": transition.at_ms,
                    "data": {
                        **transition.data,
                        "decision_id": decision_id,
                        "decided_at": rfc3339(transition.at_ms),
                    },
                }
            )
        return decisions

    def _on_sign(self, state: NodeState, sign: Sign, *, dry_run: bool) -> Decision | None:
        episode = state.node_episode if sign.device is None else state.device(sign.device).episode
        if episode is None:
            identifier = _identifier("ep", state.site, state.node, sign.device, sign.observed_ms)
            episode = Episode(identifier, sign.cause, sign.observed_ms, sign.observed_ms)
            if sign.device is None:
                state.node_episode = episode
            else:
                state.device(sign.device).episode = episode
        episode.last_sign_ms = max(episode.last_sign_ms, sign.observed_ms)
        if sign.rule not in episode.rules:
            episode.rules.append(sign.rule)
        if episode.migration != "held" and not (episode.migration == "dry_run" and not dry_run):
            return None
        if dry_run:
            episode.migration = "dry_run"
        elif self._gate.allows(state.site, state.node, sign.device, sign.observed_ms):
            episode.migration = "requested"
        else:
            return None  # asked again with the next sign
        return self._requested(state, sign, episode, dry_run=dry_run)

    def _requested(
        self, state: NodeState, sign: Sign, episode: Episode, *, dry_run: bool
    ) -> Decision:
        health = _SIGN_HEALTH
        if sign.cause == "predicted":
            health = health_score(sign.risk, self.threshold)
        decision_id = _identifier("dec", episode.episode_id, "migration.requested", dry_run)
        return {
            "schema": "rigcanary.decision/1",
            "decision_id": decision_id,
            "type": "migration.requested",
            "dry_run": dry_run,
            "decided_ms": sign.observed_ms,
            "data": {
                "site": state.site,
                "node": state.node,
                "device": sign.device,
                "episode_id": episode.episode_id,
                "decision_id": decision_id,
                "cause": sign.cause,
                "rule": sign.rule,
                "risk": round(sign.risk, 6),
                "risk_horizon_seconds": HORIZON_SECONDS,
                "health_score": round(health, 2),
                "evidence": list(sign.evidence),
                "observed_at": rfc3339(sign.observed_ms),
                "decided_at": rfc3339(sign.observed_ms),
                "model_version": self.model_version,
            },
        }

    def on_scores(
        self,
        state: NodeState,
        minute_ms: int,
        scores: Sequence[DeviceScore],
        explain: Callable[[str], Sequence[Evidence]],
        *,
        dry_run: bool,
    ) -> tuple[dict[str, Any], list[Decision]]:
        """Take one scoring of a node in; return the ``rigcanary.risks`` value and decisions.

        ``explain(device)`` gives the evidence and is called for alarms only.
        """
        at_ms = minute_ms + MINUTE_MS
        rows, signs = [], []
        for score in scores:
            device = state.device(score.device)
            device.seen_ms = at_ms
            device.risk = score.deciding
            row: dict[str, Any] = {
                "device": score.device,
                "status": "not enough data" if score.deciding is None else "scored",
                "completeness": round(score.completeness, 4),
                "risk_15m": _rounded(score.risk_15m),
                "risk_60m": _rounded(score.risk_60m),
                "risk_240m": _rounded(score.risk_240m),
                "health_score": None,
            }
            if score.deciding is not None:
                row["health_score"] = self._health(device, score.deciding)
                if self._alarm(device, score.deciding):
                    signs.append(self._predicted(device, score, at_ms, explain))
            rows.append(row)
        state.scored_minute_ms = minute_ms
        _forget_replaced(state, at_ms)
        self._gate.advance((state.site,), at_ms)
        decisions = self.on_signs(state, signs, dry_run=dry_run)
        decisions += self._close_calm(state, at_ms) + self._breaker()
        risks = {
            "schema": "rigcanary.risks/1",
            "site": state.site,
            "node": state.node,
            "minute": minute_ms // 1000,
            "model_version": self.model_version,
            "threshold": self.threshold,
            "devices": rows,
        }
        return risks, decisions

    def _health(self, device: DeviceState, risk: float) -> float:
        episode = device.episode
        broken = episode is not None and episode.cause != "predicted"
        return _SIGN_HEALTH if broken else round(health_score(risk, self.threshold), 2)

    def _alarm(self, device: DeviceState, risk: float) -> bool:
        hysteresis = RiskHysteresis.of(self.policy, device.raised, device.recent)
        device.raised = hysteresis.update(risk, self.threshold)
        device.recent = list(hysteresis.recent)
        return device.raised

    def _predicted(
        self,
        device: DeviceState,
        score: DeviceScore,
        at_ms: int,
        explain: Callable[[str], Sequence[Evidence]],
    ) -> Sign:
        # Explaining costs several scorings: only what a decision can use is explained.
        asks = device.episode is None or device.episode.migration != "requested"
        evidence = tuple(explain(score.device)) if asks else ()
        risk = score.deciding if score.deciding is not None else 0.0
        return Sign(score.device, "predicted", "predicted", at_ms, risk, evidence)

    def _close_calm(self, state: NodeState, at_ms: int) -> list[Decision]:
        calm_ms = self.policy.calm_minutes * MINUTE_MS
        released = []
        for name, device in state.devices.items():
            episode = device.episode
            # Only a card that is seen can be calm; a lost one waits for its return.
            if episode and at_ms - episode.last_sign_ms >= calm_ms and device.seen_ms == at_ms:
                device.episode = None
                released.append(self._released(state, name, episode, at_ms))
        if state.node_episode and at_ms - state.node_episode.last_sign_ms >= calm_ms:
            released.append(self._released(state, None, state.node_episode, at_ms))
            state.node_episode = None
        return released

    def _released(
        self, state: NodeState, device: str | None, episode: Episode, at_ms: int
    ) -> Decision:
        self._gate.ended(state.site, state.node, device, at_ms)
        decision_id = _identifier("dec", episode.episode_id, "device.released")
        return {
            "schema": "rigcanary.decision/1",
            "decision_id": decision_id,
            "type": "device.released",
            "dry_run": episode.migration != "requested",
            "decided_ms": at_ms,
            "data": {
                "site": state.site,
                "node": state.node,
                "device": device,
                "episode_id": episode.episode_id,
                "decision_id": decision_id,
                "cause": episode.cause,
                "decided_at": rfc3339(at_ms),
                "reason": f"no sign for {self.policy.calm_minutes} minutes",
            },
        }


def _forget_replaced(state: NodeState, at_ms: int) -> None:
    """Cards not seen for a day, and without an open story, were taken out of the rig."""
    for name in [
        n for n, d in state.devices.items() if d.episode is None and d.seen_ms < at_ms - DAY_MS
    ]:
        del state.devices[name]
        state.rules.uncorrected.pop(name, None)


def _rounded(risk: float | None) -> float | None:
    return None if risk is None else round(risk, 6)
