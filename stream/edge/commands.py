"""``rigcanary.commands``: what people tell the worker, carried out once and answered."""

import logging
from collections import deque
from typing import Any, Final

import orjson

from contract.topics import COMMANDS, node_key
from stream import manual
from stream.edge.outbox import Outbox
from stream.edge.partition import Partition
from stream.edge.shared import Shared

log = logging.getLogger(__name__)

ANSWERS_KEPT: Final = 200
MAX_BYTES: Final = 16_384


class Commands:
    """Carries commands out; the last answers can be read (``/api/commands/ID``)."""

    def __init__(self, shared: Shared, outbox: Outbox) -> None:
        self._shared = shared
        self._outbox = outbox
        self._answers: deque[tuple[str, str]] = deque(maxlen=ANSWERS_KEPT)

    def answer(self, command_id: str) -> str | None:
        """What became of a command, as far as this worker knows."""
        return next((text for known, text in reversed(self._answers) if known == command_id), None)

    async def take(self, event: Any) -> None:
        """Take one record in, and acknowledge it."""
        partition = self._shared.partition(event.message.partition)
        payload = event.value if isinstance(event.value, bytes) else b""
        try:
            if len(payload) > MAX_BYTES:
                raise ValueError(f"a command has at most {MAX_BYTES} bytes")
            command = manual.parse(orjson.loads(payload))
        except ValueError as error:  # orjson's JSONDecodeError is one
            received_ms = round(event.message.timestamp * 1000)
            self._shared.metrics.dead_letters.labels("bad-value").inc()
            await self._shared.publisher.dead_letter(
                partition.number, "bad-value", str(error), received_ms, payload, COMMANDS
            )
        else:
            await self._carry_out(partition, command)
        event.ack()

    async def _carry_out(self, partition: Partition, command: manual.Command) -> None:
        decider = self._shared.decider
        if command.kind == "breaker.close":
            # It comes to every partition; a worker has one budget, so its first node answers.
            mine = (s for s in partition.states.values() if s.site == command.site)
            state = next(mine, None)
        else:
            state = partition.states.get(node_key(command.site, command.node))
        if state is None:
            if command.kind != "breaker.close":
                unknown = f"refused: no node {command.site}/{command.node} has been heard of"
                self._answered(command, unknown)
            return
        decisions, text = manual.apply(decider, state, command)
        key = node_key(state.site, state.node)
        await self._outbox.save(partition, key, state, decisions)
        if command.device in state.devices:
            life = state.devices[command.device].state
            self._shared.view.life(state.site, state.node, command.device, life)
        self._answered(command, text)

    def _answered(self, command: manual.Command, text: str) -> None:
        log.info(
            "command %s %s node=%s/%s device=%s by=%r reason=%r: %s",
            command.kind,
            command.command_id,
            command.site,
            command.node,
            command.device,
            command.by,
            command.reason,
            text,
        )
        self._answers.append((command.command_id, text))
