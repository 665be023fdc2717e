"""Decision → Kafka → webhook: recorded before it is sent, kept until every receiver answered."""

import asyncio
import logging
import time
from collections.abc import Sequence

import orjson

from contract.topics import is_name
from contract.webhook_formats import severity
from stream import state as node_state
from stream.decision_record import Decision
from stream.deliveries import Stored, check_body
from stream.edge.partition import Partition
from stream.edge.shared import Shared
from stream.edge.tables import state_key
from stream.edge.webhook import Deliverer, Delivery, Outgoing, body
from stream.state import NodeState

log = logging.getLogger(__name__)


class Outbox:
    """Keeps each node's undelivered webhooks in its state record."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._where: dict[str, tuple[int, str]] = {}
        self.deliverer: Deliverer | None = None

    async def save(
        self, partition: Partition, key: str, state: NodeState, decisions: Sequence[Decision]
    ) -> None:
        """Make decisions durable, then public, then send them.

        In this order: the state with the outbox, the decision. A crash in between leaves either
        nothing or an outbox that is sent after the restart under the same ids.
        """
        shared = self._shared
        state.live = state.live or shared.live
        for decision in decisions:
            self._enqueue(state, decision)
        packed = node_state.pack(state)
        await shared.tables.put_state(partition.number, state_key(partition.number, key), packed)
        if not decisions:
            return
        await asyncio.gather(
            *(shared.publisher.decision(partition.number, key, d) for d in decisions)
        )
        for decision in decisions:
            data = decision["data"]
            log.info(
                "decision %s %s node=%s device=%s cause=%s rule=%s risk=%s%s",
                decision["type"],
                decision["decision_id"],
                key,
                data.get("device"),
                data.get("cause"),
                data.get("rule"),
                data.get("risk"),
                " (dry run)" if decision["dry_run"] else "",
            )
            shared.metrics.decisions.labels(decision["type"], str(data.get("cause", ""))).inc()
            shared.view.decision(decision)
            for history in shared.histories:
                history.decision(decision)
        self.submit(partition.number, key, state)

    def _enqueue(self, state: NodeState, decision: Decision) -> None:
        if decision["dry_run"] or self.deliverer is None:
            return
        kind, data = decision["type"], decision["data"]
        receivers = self.deliverer.receivers_for(kind, state.site, severity(kind, data))
        webhook_id = "msg_" + decision["decision_id"].removeprefix("dec_")
        if not receivers or any(o.webhook_id == webhook_id for o in state.outbox):
            return
        decided_ms = decision["decided_ms"]
        text = body(kind, decided_ms, data).decode()
        state.outbox.append(
            node_state.Outgoing(webhook_id, kind, data.get("device"), text, receivers, time.time())
        )

    def submit(self, partition: int, key: str, state: NodeState) -> None:
        """Hand everything undelivered of a node to the deliverer; repeating it is harmless."""
        if self.deliverer is None:
            return
        for entry in state.outbox:
            self._where[entry.webhook_id] = (partition, key)
            for receiver in entry.pending:
                self.deliverer.submit(
                    Outgoing(
                        webhook_id=entry.webhook_id,
                        type=entry.type,
                        site=state.site,
                        device_key=f"{key}/{entry.device or ''}",
                        body=entry.body.encode(),
                        receiver=receiver,
                        created_at=entry.created_at,
                    )
                )

    def submit_all(self, _receiver: str = "") -> None:
        """Hand over every undelivered webhook of the partitions that this worker owns."""
        for number, partition in self._shared.partitions.items():
            for key, state in partition.states.items():
                if state.outbox:
                    self.submit(number, key, state)

    async def retry(self, stored: Stored) -> bool:
        """Send a dead letter once more; False when its partition is another worker's.

        It waits at the end of its device's queue. When something later about the same device waits
        already, it stays dead: a request must not arrive after its withdrawal.
        """
        shared = self._shared
        partition = shared.partitions.get(stored.partition)
        site, _, node = stored.node_key.partition("/")
        if partition is None or self.deliverer is None:
            return False
        why = check_body(stored)
        if not (is_name(site) and is_name(node)):
            why = f"its key {stored.node_key!r:.80} is not SITE/NODE"
        if why is not None:
            log.warning("%s is not sent again: %s", stored.value["webhook-id"], why)
            return True
        webhook_id, receiver = stored.key
        whole = orjson.loads(stored.value["body"])
        device, at = whole["data"].get("device"), whole["timestamp"]
        state = partition.state(site, node, stored.node_key)
        if any(
            entry.device == device
            and receiver in entry.pending
            and orjson.loads(entry.body)["timestamp"] > at
            for entry in state.outbox
        ):
            error = "not sent again: something later about the same device is on its way"
            value = {**stored.value, "status": "dead", "error": error}
            await shared.publisher.delivery(stored.partition, stored.node_key, value)
            return True
        known = next((entry for entry in state.outbox if entry.webhook_id == webhook_id), None)
        if known is None:
            known = node_state.Outgoing(
                webhook_id, whole["type"], device, stored.value["body"], [], time.time()
            )
            state.outbox.append(known)
        if receiver not in known.pending:
            known.pending.append(receiver)
            known.created_at = time.time()
        await self.save(partition, stored.node_key, state, ())
        self.submit(stored.partition, stored.node_key, state)
        return True

    def forget(self) -> None:
        """The partitions were taken away; who gets them sends what is left."""
        self._where.clear()
        if self.deliverer is not None:
            self.deliverer.withdraw(lambda _: True)

    async def on_delivered(self, delivery: Delivery) -> None:
        """Record a finished delivery and drop it from the outbox."""
        where = self._where.get(delivery["webhook-id"])
        if where is None:
            return
        number, key = where
        partition = self._shared.partitions.get(number)
        state = partition.states.get(key) if partition is not None else None
        if partition is None or state is None:
            return
        shared = self._shared
        shared.metrics.deliveries.labels(delivery["receiver"], delivery["status"]).inc()
        await shared.publisher.delivery(number, key, dict(delivery))
        for entry in list(state.outbox):
            if entry.webhook_id == delivery["webhook-id"]:
                if delivery["status"] == "delivered":
                    waited = max(0.0, time.time() - entry.created_at)
                    shared.metrics.decision_to_delivery_seconds.observe(waited)
                if delivery["receiver"] in entry.pending:
                    entry.pending.remove(delivery["receiver"])
                if not entry.pending:
                    state.outbox.remove(entry)
                    self._where.pop(entry.webhook_id, None)
        await self.save(partition, key, state, ())
