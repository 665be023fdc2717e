"""Kafka record → samples held for their minute, threshold signs at once."""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Any, Final

import orjson

from contract import message as contract_message
from contract.decision import Evidence
from contract.errors import UnusableMessage
from contract.topics import EVENTS, TELEMETRY, node_key
from stream.decision_record import Decision
from stream.deep_json import dumps
from stream.edge.outbox import Outbox
from stream.edge.partition import Held, Partition
from stream.edge.shared import Shared
from stream.minutes import minute_of
from stream.rules import Sign, check_event, check_sample
from stream.state import NodeState
from stream.validate import Sample, decode
from stream.watermark import Arrival, NodeMinute

log = logging.getLogger(__name__)

MAX_HELD_SAMPLES: Final = 400_000
"""Telemetry messages held at most; about two minutes of 12,500 nodes at 5 s, and more."""
MAX_PENDING: Final = 2_000
"""Dead letters on their way to Kafka at most."""


class Intake:
    """Handles records of ``rigcanary.telemetry`` and ``rigcanary.events``."""

    def __init__(self, shared: Shared, outbox: Outbox) -> None:
        self._shared = shared
        self._outbox = outbox
        self.held_samples = 0
        self.room = asyncio.Event()
        self.room.set()
        self._pending: list[Any] = []

    async def telemetry(self, event: Any) -> None:
        """Take one record in. It is acknowledged when the minutes it touches are stored."""
        shared = self._shared
        partition = shared.partition(event.message.partition)
        received_ms = round(event.message.timestamp * 1000)
        partition.last_arrival = time.monotonic()
        partition.idle_closed = False
        shared.metrics.records.inc()
        waits_for: set[NodeMinute] = set()
        pending: list[Any] = []
        payload = event.value
        # The held event must not keep the bytes: two minutes of them are a gigabyte.
        event.value = event.message.value = None
        messages = self._messages(partition, payload, received_ms, pending)
        for raw in messages:
            try:
                sample = decode(raw, received_ms, shared.repairs)
            except UnusableMessage as error:
                pending.append(self._reject(partition, error, received_ms, dumps(raw)))
                continue
            await self._sample(partition, sample, received_ms, raw, waits_for, pending)
        self._pending += pending
        partition.held.append(Held(event, waits_for, pending))
        if len(self._pending) > MAX_PENDING:
            await asyncio.gather(*self._pending)
            self._pending.clear()
        if self.held_samples > MAX_HELD_SAMPLES:
            self.room.clear()
            await self.room.wait()

    def _messages(
        self, partition: Partition, payload: bytes, received_ms: int, pending: list[Any]
    ) -> list[Any]:
        try:
            record = orjson.loads(payload) if payload is not None else None
        except orjson.JSONDecodeError as error:
            unusable = UnusableMessage("not-json", str(error))
            pending.append(self._reject(partition, unusable, received_ms, payload))
            return []
        messages = record.get("messages") if isinstance(record, dict) else None
        if not isinstance(messages, list):
            unusable = UnusableMessage("record", 'the record is not {"messages": […]}')
            pending.append(self._reject(partition, unusable, received_ms, payload or b""))
            return []
        return messages

    def _reject(
        self,
        partition: Partition,
        error: UnusableMessage,
        received_ms: int,
        payload: bytes,
        topic: str = TELEMETRY,
    ) -> Any:
        self._shared.metrics.dead_letters.labels(error.reason).inc()
        return self._shared.publisher.dead_letter(
            partition.number, error.reason, error.detail, received_ms, payload, topic
        )

    async def _sample(
        self,
        partition: Partition,
        sample: Sample,
        received_ms: int,
        raw: Any,
        waits_for: set[NodeMinute],
        pending: list[Any],
    ) -> None:
        shared, key = self._shared, sample.key
        if not partition.roster.admit(key, sample.devices, sample.ts_ms):
            many = UnusableMessage("too-many-names", f"nodes, or devices of {key}, are too many")
            pending.append(self._reject(partition, many, received_ms, dumps(raw)))
            return
        arrival = partition.book.add(sample)
        if arrival is Arrival.LATE:
            late = UnusableMessage("late", "its minute closed over ten minutes ago")
            pending.append(self._reject(partition, late, received_ms, dumps(raw)))
            return
        if arrival is Arrival.TOO_MANY:
            many = UnusableMessage("too-many-messages", f"of {key} in one minute")
            pending.append(self._reject(partition, many, received_ms, dumps(raw)))
            return
        # A duplicate too: the record that brought the first one may be acknowledged only after
        # the minute is stored, and so must this one.
        waits_for.add((key, minute_of(sample.ts_ms)))
        if arrival is Arrival.DUPLICATE:
            shared.metrics.duplicates.inc()
            return
        self.held_samples += 1
        shared.metrics.messages.inc()
        shared.watch.heard(key, sample.site, sample.ts_ms, received_ms, partition.number)
        state = partition.state(sample.site, sample.node, key)
        if sample.ts_ms <= state.newest_ms:
            return
        state.newest_ms = sample.ts_ms
        limits = shared.decider.policy.limits_for(info.get("model") for info in sample.infos)
        signs = check_sample(sample, state.rules, limits)
        if signs:
            decisions = shared.decider.on_signs(state, signs, dry_run=shared.dry_run)
            await self._decided(partition, key, state, decisions)

    async def _decided(
        self, partition: Partition, key: str, state: NodeState, decisions: list[Decision]
    ) -> None:
        if decisions:
            await self._outbox.save(partition, key, state, decisions)

    async def next_in_turn(self) -> None:
        """Ask again for the moves that the budget holds."""
        shared = self._shared
        for state, decisions in shared.decider.next_in_turn(
            shared.state_of, dry_run=shared.dry_run
        ):
            key = node_key(state.site, state.node)
            for partition in list(shared.partitions.values()):
                if partition.states.get(key) is state:
                    await self._outbox.save(partition, key, state, decisions)

    async def structural(self, event: Any) -> None:
        """Take one record of ``rigcanary.events`` in, and acknowledge it."""
        shared = self._shared
        partition = shared.partition(event.message.partition)
        received_ms = round(event.message.timestamp * 1000)
        payload = event.value if isinstance(event.value, bytes) else b""
        try:
            found = contract_message.check_event(contract_message.loads(payload), received_ms)
        except UnusableMessage as error:
            await self._reject(partition, error, received_ms, payload, EVENTS)
            event.ack()
            return
        key = node_key(found["site"], found["node"])
        if found["type"] in ("node_online", "node_offline"):
            shared.watch.said(key, offline=found["type"] == "node_offline", received_ms=received_ms)
        shared.view.event(found)
        for history in shared.histories:
            history.event(found)
        sign = check_event(found, round(found["ts"] * 1000))
        if sign is not None:
            state = partition.state(found["site"], found["node"], key)
            decisions = shared.decider.on_signs(state, [sign], dry_run=shared.dry_run)
            await self._decided(partition, key, state, decisions)
        event.ack()

    async def silence(self, idle: Collection[int]) -> None:
        """Look for nodes that fell silent while their site speaks."""
        for key, newest_ms in self._shared.watch.lost(idle):
            for partition in self._shared.partitions.values():
                state = partition.states.get(key)
                if state is None:
                    continue
                evidence = Evidence(sensor="heard", value=None, baseline=None, contribution=1.0)
                sign = Sign(None, "node_lost", "silent", newest_ms, 1.0, (evidence,))
                decisions = self._shared.decider.on_signs(
                    state, [sign], dry_run=self._shared.dry_run
                )
                await self._decided(partition, key, state, decisions)
