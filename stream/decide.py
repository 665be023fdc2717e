"""From signs to decisions: one episode of one device asks for one migration."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from contract.decision import Evidence
from contract.minute import MINUTE_MS
from stream import decision_record as record
from stream import ending, health, lifecycle
from stream.budget import Transition
from stream.decision_record import Decision
from stream.gate import DeviceScore, Gate
from stream.policy import Policy, RiskHysteresis, Silence, health_score
from stream.rules import Sign
from stream.state import DeviceState, Episode, NodeState
from stream.story import is_gone, note_once, open_episode
from stream.story import priority as priority_of
from stream.story import weight as weight_of
from stream.waiting import SILENCED, Place, Waiting

DAY_MS: Final = 86_400_000
MAX_PAST: Final = 16
MAX_ASKED: Final = 1_000


class Decider:
    """Turns signs and scorings of a node into decisions; keeps all memory in ``NodeState``.

    Only the order in which held moves wait is kept here, and is rebuilt from the states.
    """

    def __init__(self, policy: Policy, gate: Gate, threshold: float, model_version: str) -> None:
        self.policy = policy
        self.threshold = threshold
        self.model_version = model_version
        self.gate = gate
        self.waiting = Waiting()
        self._asked: dict[str, deque[tuple[int, str]]] = {}

    def restore(self, states: Sequence[NodeState]) -> None:
        """Count open moves, breakers and what waits again after a restart."""
        opened: dict[str, int] = {}
        closed: dict[str, int] = {}
        for state in states:
            opened[state.site] = max(opened.get(state.site, 0), state.breaker_opened_ms)
            closed[state.site] = max(closed.get(state.site, 0), state.breaker_closed_ms)
            for name, episode in state.episodes():
                retired = name is not None and state.devices[name].state == "retired"
                if episode.migration == "requested":
                    if not is_gone(episode) and not retired:
                        weight = weight_of(state, name)
                        self.gate.restore(state.site, state.node, name, episode.moved_ms, weight)
                elif episode.waits:
                    self.waiting.add(
                        state.site, (state.node, name), priority_of(state, name, episode)
                    )
        for site, opened_ms in opened.items():
            if opened_ms > closed[site]:
                self.gate.restore_breaker(site, opened_ms)
        self.gate.take()

    def forget(self) -> None:
        """The partitions were taken away; who gets them restores what they hold."""
        self.waiting.forget()
        self.gate.forget()

    def on_signs(self, state: NodeState, signs: Sequence[Sign], *, dry_run: bool) -> list[Decision]:
        """Decisions that the signs of one moment ask for."""
        decisions = []
        for sign in signs:
            decisions += self._on_sign(state, sign, dry_run=dry_run)
        return decisions + self.breaker(state)

    def breaker(self, state: NodeState) -> list[Decision]:
        """The breaker's own decisions; they travel with the node that made it trip."""
        decisions = []
        for transition in self.gate.take():
            if transition.type == "breaker.opened":
                state.breaker_opened_ms = max(state.breaker_opened_ms, transition.at_ms)
                decisions.append(record.of_breaker(self._explained(transition)))
            else:
                state.breaker_closed_ms = max(state.breaker_closed_ms, transition.at_ms)
                decisions.append(record.of_breaker(transition))
        return decisions

    def _explained(self, opened: Transition) -> Transition:
        """With the signs that asked for moves lately: a storm of one rule has one cause."""
        since_ms = opened.at_ms - self.policy.budget.window_ms
        asked = self._asked.get(opened.site, ())
        counts = Counter(rule for at_ms, rule in asked if at_ms > since_ms)
        signs = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        words = ", ".join(f"{rule} {count}" for rule, count in signs.items())
        reason = f"{opened.data['reason']}; signs: {words or 'none'}"
        return replace(opened, data={**opened.data, "reason": reason, "signs": signs})

    def is_dry(self, site: str, *, dry_run: bool) -> bool:
        """Whether decisions for this site are recorded and not sent."""
        return dry_run or site in self.policy.dry_run_sites

    # -- signs -----------------------------------------------------------------------------------

    def _on_sign(self, state: NodeState, sign: Sign, *, dry_run: bool) -> list[Decision]:
        card = state.device(sign.device) if sign.device is not None else None
        if card is not None and card.state == "retired":
            return []
        episode = state.node_episode if card is None else card.episode
        if episode is None:
            episode = open_episode(state, card, sign)
        episode.last_sign_ms = max(episode.last_sign_ms, sign.observed_ms)
        if sign.rule not in episode.rules:
            episode.rules.append(sign.rule)
            episode.note(
                sign.observed_ms, "sign", rule=sign.rule, cause=sign.cause, risk=round(sign.risk, 6)
            )
        if card is not None and card.state == "probation" and episode.migration == "requested":
            lifecycle.move(card, "quarantined", sign.observed_ms)
            episode.note(sign.observed_ms, "quarantined", reason=f"{sign.rule} on probation")
        asks = {"held", "manual"}
        if not self.is_dry(state.site, dry_run=dry_run):
            asks.add("dry_run")
        if episode.waits or episode.migration not in asks:
            return []
        episode.cause, episode.rule, episode.risk = sign.cause, sign.rule, sign.risk
        episode.evidence = list(sign.evidence)
        return self._ask(state, sign.device, episode, sign.observed_ms, dry_run=dry_run)

    def _ask(
        self,
        state: NodeState,
        device: str | None,
        episode: Episode,
        at_ms: int,
        *,
        dry_run: bool,
        queued: bool = False,
    ) -> list[Decision]:
        """Ask for an episode's move; ``queued``: its turn among those that wait has come."""
        site, node = state.site, state.node
        silence = self._silence(state, device, at_ms)
        if silence is not None:
            reason = silence.reason or "maintenance"
            note_once(episode, at_ms, "silenced", reason=reason)
            if device is None:  # a silent node gives no further sign
                self._wait(state, device, episode, silenced=True)
            return []
        if self.is_dry(site, dry_run=dry_run):
            if episode.migration == "held":
                episode.migration = "dry_run"
                episode.note(at_ms, "dry_run")
                return [self._requested(state, device, episode, at_ms, dry_run=True)]
            return []
        gone = is_gone(episode)
        if not queued:
            recent = self._asked.setdefault(site, deque(maxlen=MAX_ASKED))
            recent.append((at_ms, episode.rule))
        if not queued and not gone and self.waiting.any(site):
            held: str | None = "queue"
        else:
            held = self.gate.allows(
                site, node, device, at_ms, weight=weight_of(state, device), lost=gone
            )
        if held is not None:
            self._wait(state, device, episode)
            note_once(episode, at_ms, "held", reason=held)
            return []
        self.waiting.drop(site, (node, device))
        episode.waits, episode.migration, episode.moved_ms = False, "requested", at_ms
        decisions = [self._requested(state, device, episode, at_ms, dry_run=False)]
        if device is not None and state.device(device).state != "quarantined":
            decisions.append(self.quarantine(state, device, episode, at_ms, "its job is moved"))
            decisions[0]["data"] |= {"repeat_offender": True} if episode.repeat else {}
        episode.note(at_ms, "migration.requested", decision_id=decisions[0]["decision_id"])
        return decisions

    def quarantine(
        self, state: NodeState, device: str, episode: Episode, at_ms: int, reason: str, **more: Any
    ) -> Decision:
        """Take a card out of service; counts how often that was of late."""
        card = state.device(device)
        lifecycle.move(card, "quarantined", at_ms)
        since_ms = at_ms - self.policy.repeat_days * DAY_MS
        recent = [at for at in card.past_ms if at > since_ms]
        card.past_ms = [*recent[-MAX_PAST:], at_ms]
        episode.repeat = len(card.past_ms) >= self.policy.repeat_episodes
        more |= {"quarantines": len(card.past_ms), "repeat_offender": episode.repeat}
        decision = record.about("device.quarantined", state, device, episode, at_ms, reason, **more)
        episode.note(at_ms, "quarantined", reason=reason, repeat_offender=episode.repeat)
        return decision

    def _silence(self, state: NodeState, device: str | None, at_ms: int) -> Silence | None:
        found = self.policy.silenced(state.site, state.node, device, at_ms)
        if found is not None or not state.silences:
            return found
        mine = (Silence(**value) for value in state.silences)
        return next((s for s in mine if s.covers(state.site, state.node, device, at_ms)), None)

    def _wait(
        self, state: NodeState, device: str | None, episode: Episode, *, silenced: bool = False
    ) -> None:
        episode.waits = True
        priority = priority_of(state, device, episode)
        if silenced:
            priority = (priority[0], SILENCED, priority[2])
        self.waiting.add(state.site, (state.node, device), priority)

    def _requested(
        self, state: NodeState, device: str | None, episode: Episode, at_ms: int, *, dry_run: bool
    ) -> Decision:
        score = 0.0
        if episode.cause == "predicted":
            score = health_score(episode.risk, self.threshold)
        return record.requested(
            state,
            device,
            episode,
            at_ms,
            observed_ms=episode.last_sign_ms,
            health=score,
            model_version=self.model_version,
            dry_run=dry_run,
        )

    def next_in_turn(
        self, state_of: Callable[[str, str], NodeState | None], *, dry_run: bool
    ) -> list[tuple[NodeState, list[Decision]]]:
        """Ask again for what waits, the highest risk first, once a minute of each site's time.

        Also for a state that changed without a decision the pair is returned, so that it is saved.
        """
        found: dict[Place, tuple[NodeState, list[Decision]]] = {}
        for site, (node, device), at_ms in self.waiting.turns():
            state = state_of(site, node)
            episode = None if state is None else state.episode(device)
            if state is None or episode is None or not episode.waits:
                self.waiting.drop(site, (node, device))
                continue
            entry = found.setdefault((node, site), (state, []))
            if self._is_over(state, device, episode, at_ms):
                episode.waits = False
                episode.note(at_ms, "not needed", reason="the sign is gone")
                self.waiting.drop(site, (node, device))
                continue
            entry[1].extend(self._ask(state, device, episode, at_ms, dry_run=dry_run, queued=True))
            entry[1].extend(self.breaker(state))
        return list(found.values())

    def _is_over(self, state: NodeState, device: str | None, episode: Episode, at_ms: int) -> bool:
        """Whether what waits has no reason any more: the alarm cleared, the node speaks again."""
        if device is None:
            return state.newest_ms > episode.last_sign_ms + MINUTE_MS
        if episode.cause == "predicted":
            return not state.device(device).raised
        if is_gone(episode) or episode.rule == "unresponsive":
            return (
                at_ms - episode.last_sign_ms > 10 * MINUTE_MS
                and state.newest_ms > at_ms - MINUTE_MS
            )
        return False

    # -- scorings --------------------------------------------------------------------------------

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
                hysteresis = RiskHysteresis.of(
                    self.policy, device.raised, device.recent, device.model
                )
                device.raised = hysteresis.update(score.deciding, self.threshold)
                device.recent = list(hysteresis.recent)
                parts = self._parts(device, score, hysteresis.effective)
                row["health_score"] = round(health.combine(parts), 2)
                row["health_parts"] = {k: round(v, 2) for k, v in parts.items() if v < 100.0}
                if device.raised:
                    signs.append(self._predicted(device, score, at_ms, explain))
            rows.append(row)
        state.scored_minute_ms = minute_ms
        ending.forget_replaced(self, state, at_ms)
        self.waiting.advance(state.site, at_ms)
        self.gate.advance((state.site,), at_ms)
        decisions = self.on_signs(state, signs, dry_run=dry_run)
        for score, row in zip(scores, rows, strict=True):
            decisions += ending.progress(self, state, score, row["health_score"], at_ms)
        decisions += ending.close_calm_node(self, state, at_ms) + self.breaker(state)
        for row in rows:
            known = state.devices.get(row["device"])
            row["state"] = known.state if known is not None else "healthy"
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

    def _parts(self, device: DeviceState, score: DeviceScore, effective: float) -> dict[str, float]:
        episode = device.episode
        broken = (
            episode is not None
            and episode.cause not in ("predicted", "manual")
            and device.state != "probation"
        )
        limit = self.policy.limits_of(device.model).temperature_celsius
        return {
            "risk": health.risk_part(effective, self.threshold),
            "temperature": health.temperature_part(score.temperature_celsius, limit),
            "telemetry": health.telemetry_part(score.completeness),
            "history": health.history_part(len(device.past_ms)),
            "signs": health.signs_part(broken),
        }

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


def _rounded(risk: float | None) -> float | None:
    return None if risk is None else round(risk, 6)
