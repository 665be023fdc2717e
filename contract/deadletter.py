"""Dead letters: what could not be used, why, and its original bytes (contracts section 3)."""

import base64
from typing import Final

import orjson

from contract.times import rfc3339

REASONS: Final[dict[str, str]] = {
    "too-large": "the payload is over 256 KiB",
    "not-json": "the payload is not JSON",
    "schema": "the payload names another schema, or none",
    "missing-key": "a key that the schema requires is absent",
    "bad-value": "a required key holds a value of the wrong type or range",
    "topic": "the MQTT topic is not one of ours, or disagrees with the body",
    "future": "the time stamp is more than five minutes past the receiver's clock",
    "late": "the sample came after the ten minutes that late samples are allowed",
    "too-many-messages": "more messages of one node in one minute than are accepted",
    "too-many-names": "more nodes, or more devices of a node, than are remembered",
    "refused": "InfluxDB refuses a point for good; the payload is its line, never sent again",
    "record": 'a Kafka record is not {"messages": […]}',
}
MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_DEAD_BYTES: Final = 700_000
"""Bytes of an unusable payload that are kept: in base64 they still fit Kafka's 1 MB."""


def dead_letter(reason: str, detail: str, topic: str, received_ms: int, payload: bytes) -> bytes:
    """The dead-letter record as JSON bytes. ``received_ms`` is Unix milliseconds UTC.

    Of a huge payload the first :data:`MAX_DEAD_BYTES` are kept, and ``detail`` says so.
    """
    if len(payload) > MAX_DEAD_BYTES:
        kept = f"the first {MAX_DEAD_BYTES} of {len(payload)} bytes are kept"
        detail, payload = f"{detail[:400]}; {kept}", payload[:MAX_DEAD_BYTES]
    return orjson.dumps(
        {
            "reason": reason,
            "detail": detail[:500],
            "topic": topic,
            "received_at": rfc3339(received_ms),
            "payload_base64": base64.b64encode(payload).decode(),
        }
    )
