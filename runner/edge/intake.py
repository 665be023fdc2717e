"""What arrives from outside and changes cordons or asks for moves: webhooks and alerts.

Runs in the engine's thread. Each message is taken in one transaction together with its
identity, so that it counts once however often it comes and whenever the runner dies.
"""

import hashlib
import uuid
from typing import Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from runner import migration as plan
from runner.alerts import find_target
from runner.edge.engine import Engine
from runner.edge.messages import (
    Alert,
    MigrationRequested,
    MigrationWithdrawn,
    Notification,
    Quarantined,
    Subject,
    WebhookBody,
)
from runner.edge.replies import AlertReply, WebhookReply
from runner.fleet import Cordon
from runner.job import Job
from runner.migration import Migration, MigrationState
from runner.placement import Place
from runner.times import from_rfc3339

M = TypeVar("M", bound=BaseModel)
ALERT_CAUSE: Final = "threshold"
"""An alert rule is a threshold that somebody else watches."""
MANUAL_CAUSE: Final = "manual"
"""A person quarantined the card; the sender asks for no move of its own then."""
WITHOUT_EFFECT: Final = frozenset({"test.ping", "breaker.opened", "breaker.closed"})
TYPES: Final = WITHOUT_EFFECT | {
    "migration.requested",
    "migration.withdrawn",
    "device.quarantined",
    "device.released",
}


class BadBody(ValueError):
    """A signed body that is not what its type promises; the message names the key."""


class Intake:
    """The effects of webhooks and alerts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    def webhook(self, webhook_id: str, raw: bytes) -> WebhookReply:
        """Take a webhook whose signature was verified.

        Raises:
            BadBody: when the body is not usable; nothing is remembered then.
        """
        body = parse_body(raw)
        if body.type not in TYPES:
            return self._count("other", WebhookReply(status="ignored"))
        try:
            sent_ms = from_rfc3339(body.timestamp)
        except ValueError as error:
            raise BadBody(f"timestamp: {body.timestamp!r} is not an RFC 3339 time") from error
        data: Subject | None = None
        if body.type == "migration.requested":
            data = _check(MigrationRequested, body)
        elif body.type == "migration.withdrawn":
            data = _check(MigrationWithdrawn, body)
        elif body.type == "device.quarantined":
            data = _check(Quarantined, body)
        elif body.type not in WITHOUT_EFFECT:
            data = _check(Subject, body)
        changed: list[Migration] = []
        with self._store.transaction():
            if not self._store.saw_webhook(webhook_id, body.type, self._engine.clock_ms()):
                return self._count(body.type, WebhookReply(status="duplicate"))
            if data is not None:
                changed = self._apply(body.type, data, sent_ms)
        self._adopt(changed)
        reply = WebhookReply(status="accepted", migrations=[m.id for m in changed])
        return self._count(body.type, reply)

    def alerts(self, notification: Notification) -> list[AlertReply]:
        """Take a notification, alert by alert."""
        changed: list[Migration] = []
        replies = []
        with self._store.transaction():
            for alert in notification.alerts:
                reply, new = self._alert(alert)
                replies.append(reply)
                changed.extend(new)
        self._adopt(changed)
        for reply in replies:
            self._engine.metrics.alerts.labels(reply.status).inc()
        return replies

    def release(self, node: str, device: str | None) -> int | None:
        """Open a card or a node with all its cards, by a person's word; None: not known.

        Returns how many reasons fell. Requests that have not touched a job yet are withdrawn.
        """
        known = any(v.name == node for v in self._engine.nodes())
        if not known and all(c.node != node for c in self._engine.cordons):
            return None
        with self._store.transaction():
            if device is None:
                fallen = self._store.uncordon_node(node)
            else:
                fallen = self._store.uncordon(node, device)
            changed = self._withdraw_open(node, device, every_device=device is None)
        self._adopt(changed)
        return fallen

    def _apply(self, kind: str, data: Subject, sent_ms: int) -> list[Migration]:
        node = self._node_name(data)
        now = self._engine.clock_ms()
        if isinstance(data, MigrationRequested):
            return self._request(node, data.device, data.episode_id, data.cause, "webhook", sent_ms)
        if isinstance(data, MigrationWithdrawn):
            return self._withdraw(node, data)
        if kind == "device.quarantined":
            reason = data.reason or "quarantined"
            self._store.cordon(Cordon(node, data.device, "quarantine", reason, now), sent_ms)
            by = data.by if isinstance(data, Quarantined) else None
            return self._by_hand(node, data, sent_ms) if by and data.device else []
        self._store.release_sent(node, data.device, sent_ms)
        return self._withdraw_open(node, data.device)

    def _by_hand(self, node: str, data: Subject, sent_ms: int) -> list[Migration]:
        """What a person closes is left, too: once for each time that somebody says so.

        A card that its episode has already asked to be left may have been kept on by a
        withdrawal; the person's word is a request of its own then.
        """
        episode_id = data.episode_id or f"by-hand-{sent_ms}"
        if self._store.migrations_of(node, data.device, episode_id):
            episode_id = f"{episode_id}+{sent_ms}"
        return self._request(node, data.device, episode_id, MANUAL_CAUSE, "webhook", sent_ms)

    def _request(
        self,
        node: str,
        device: str | None,
        episode_id: str,
        cause: str,
        source: str,
        sent_ms: int | None,
    ) -> list[Migration]:
        if self._store.migrations_of(node, device, episode_id):
            return []
        now = self._engine.clock_ms()
        open_still = self._store.cordon(
            Cordon(node, device, f"episode:{episode_id}", cause, now), sent_ms
        )
        migrations = []
        jobs: list[Job | None] = [*self._engine.jobs_on(node, device)]
        for job in jobs or [None]:
            migration = Migration(
                id=f"mig-{uuid.uuid4().hex[:12]}",
                episode_id=episode_id,
                node=node,
                device=device,
                cause=cause,
                source=source,
                requested_ms=now,
                job=None if job is None else job.id,
                generation=0 if job is None else job.generation,
                from_places=() if job is None else job.places,
            )
            if not open_still:
                migration = plan.withdraw(migration, now)
            elif job is None:
                migration, _ = plan.advance(migration, None, plan.Limits(), now)
            migrations.append(migration)
        return self._save(migrations)

    def _withdraw(self, node: str, data: MigrationWithdrawn) -> list[Migration]:
        now = self._engine.clock_ms()
        known = self._store.migrations_of(node, data.device, data.episode_id)
        if not known:
            # It overtook its request, which must find it here and have no effect.
            return self._save(
                [
                    Migration(
                        id=f"mig-{uuid.uuid4().hex[:12]}",
                        episode_id=data.episode_id,
                        node=node,
                        device=data.device,
                        cause="predicted",
                        source="webhook",
                        requested_ms=now,
                        state=MigrationState.WITHDRAWN,
                        completed_ms=now,
                    )
                ]
            )
        changed = []
        for stored in known:
            current = self._engine.migrations.get(stored.id, stored)
            withdrawn = plan.withdraw(current, now)
            if withdrawn != current:
                changed.append(withdrawn)
        if len(changed) == len(known):
            source = f"episode:{data.episode_id}"
            self._store.uncordon(node, data.device, source=source)
        return self._save(changed)

    def _withdraw_open(
        self, node: str, device: str | None, *, every_device: bool = False
    ) -> list[Migration]:
        now = self._engine.clock_ms()
        changed = []
        for current in self._engine.migrations.values():
            if current.node == node and (every_device or current.device == device):
                withdrawn = plan.withdraw(current, now)
                if withdrawn != current:
                    changed.append(withdrawn)
        return self._save(changed)

    def _alert(self, alert: Alert) -> tuple[AlertReply, list[Migration]]:
        fingerprint = alert.fingerprint or _fingerprint(alert.labels)
        if alert.status == "resolved":
            # The card may look well only because its job has left: a person releases it.
            return AlertReply(fingerprint=fingerprint, status="resolved"), []
        known = {p for job in self._engine.jobs.values() for p in job.places}
        known |= {Place(c.node, c.device) for c in self._engine.cordons}
        target = find_target(alert.labels, self._engine.nodes(), known)
        if target.node is None:
            return AlertReply(fingerprint=fingerprint, status="ignored", detail=target.problem), []
        reply = AlertReply(
            fingerprint=fingerprint, status="accepted", node=target.node, device=target.device
        )
        key = f"{fingerprint}|{alert.startsAt}|{alert.status}"
        if not self._store.saw_alert(key, self._engine.clock_ms()):
            return reply.model_copy(update={"status": "duplicate"}), []
        episode_id = f"alert-{fingerprint}-{alert.startsAt}"
        new = self._request(target.node, target.device, episode_id, ALERT_CAUSE, "alert", None)
        return reply.model_copy(update={"migrations": [m.id for m in new]}), new

    def _node_name(self, data: Subject) -> str:
        full = f"{data.site}/{data.node}"
        return full if any(v.name == full for v in self._engine.nodes()) else data.node

    def _save(self, migrations: list[Migration]) -> list[Migration]:
        for migration in migrations:
            self._store.save_migration(migration)
        return migrations

    def _adopt(self, migrations: list[Migration]) -> None:
        self._engine.cordons = self._store.cordons()
        for migration in migrations:
            self._engine.adopt(migration)

    def _count(self, kind: str, reply: WebhookReply) -> WebhookReply:
        self._engine.metrics.webhooks.labels(kind, reply.status).inc()
        return reply


def parse_body(raw: bytes) -> WebhookBody:
    """The envelope.

    Raises:
        BadBody: when it is not JSON of that shape.
    """
    try:
        return WebhookBody.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not JSON: {error}") from error
    except ValidationError as error:
        raise BadBody(_explain(error)) from error


def _check(model: type[M], body: WebhookBody) -> M:
    try:
        return model.model_validate(body.data)
    except ValidationError as error:
        raise BadBody(f"{body.type} data: {_explain(error)}") from error


def _explain(error: ValidationError) -> str:
    items = error.errors(include_input=False, include_url=False)[:5]
    return "; ".join(
        f"{'.'.join(str(p) for p in i['loc'])}: {i['msg']}".removeprefix(": ") for i in items
    )


def _fingerprint(labels: dict[str, str]) -> str:
    return hashlib.sha256(orjson.dumps(labels, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
