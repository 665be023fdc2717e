"""What the worker writes to Kafka beside its tables; every method returns an awaitable future."""

from typing import Any, Final

import orjson

from contract.deadletter import dead_letter
from contract.topics import DEAD_LETTER, DECISIONS, DELIVERIES, MINUTES, RISKS

_RAW: Final = {
    "key_type": bytes,
    "value_type": bytes,
    "key_serializer": "raw",
    "value_serializer": "raw",
}


class Publisher:
    """Topics of the worker's output, each record with its node's partition."""

    def __init__(self, app: Any, partitions: int) -> None:
        self._topics = {
            name: app.topic(name, partitions=partitions, acks=False, **_RAW)
            for name in (MINUTES, RISKS, DECISIONS, DELIVERIES, DEAD_LETTER)
        }

    def minutes(self, partition: int, key: str, value: dict[str, Any]) -> Any:
        """One record a node and minute."""
        return self._send(MINUTES, partition, key, value)

    def risks(self, partition: int, key: str, value: dict[str, Any]) -> Any:
        """One record a node and scoring."""
        return self._send(RISKS, partition, key, value)

    def decision(self, partition: int, key: str, value: dict[str, Any]) -> Any:
        """One decision; the last one of a ``decision_id`` wins."""
        return self._send(DECISIONS, partition, key, value)

    def delivery(self, partition: int, key: str, value: dict[str, Any]) -> Any:
        """One finished delivery."""
        return self._send(DELIVERIES, partition, key, value)

    def dead_letter(
        self,
        partition: int,
        reason: str,
        detail: str,
        received_ms: int,
        payload: bytes,
        topic: str,
    ) -> Any:
        """An unusable message, with its bytes."""
        value = dead_letter(reason, detail, topic, received_ms, payload)
        return self._topics[DEAD_LETTER].send_soon(value=value, partition=partition)

    def _send(self, topic: str, partition: int, key: str, value: dict[str, Any]) -> Any:
        return self._topics[topic].send_soon(
            key=key.encode(), value=orjson.dumps(value), partition=partition
        )
