"""Dead letters as they are listed and sent again (contracts section 3); pure."""

import base64
import binascii
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from contract.deadletter import MAX_DEAD_BYTES
from contract.errors import UnusableMessage
from contract.message import loads
from contract.times import rfc3339
from contract.topics import EVENTS, RESENT, TELEMETRY, is_name, node_key, parse_mqtt_topic

_WHOLE_RECORDS: Final = ("not-json", "record")
"""Reasons for which the worker files a Kafka record as it was, not one message of it."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One record of ``rigcanary.dead-letter``.

    ``partition`` and ``offset`` are its place there; ``digest`` tells it from another one at the
    same place of a topic that was made anew; ``node`` is ``SITE/NODE`` where that can be told.
    """

    partition: int
    offset: int
    reason: str
    detail: str
    topic: str
    received_ms: int
    payload: bytes
    digest: str
    node: str | None

    @property
    def place(self) -> str:
        """``PARTITION:OFFSET``, by which a person names it."""
        return f"{self.partition}:{self.offset}"

    @property
    def over_mqtt(self) -> bool:
        """Whether it came by an MQTT topic, rather than by one of Kafka."""
        return self.topic not in (TELEMETRY, EVENTS)

    @property
    def whole(self) -> bool:
        """Whether all of its bytes were kept, as they came: a refused point is no message."""
        return self.reason != "refused" and 0 < len(self.payload) < MAX_DEAD_BYTES

    def record(self) -> bytes:
        """The value to write to the Kafka topic that it came from."""
        if self.topic == EVENTS or self.reason in _WHOLE_RECORDS:
            return self.payload
        return b'{"messages":[' + self.payload + b"]}"

    def summary(self, *, resent: bool) -> dict[str, Any]:
        """What ``--json`` shows of it."""
        return {
            "id": self.place,
            "reason": self.reason,
            "detail": self.detail,
            "topic": self.topic,
            "node": self.node,
            "received_at": rfc3339(self.received_ms),
            "bytes": len(self.payload),
            "resent": resent,
        }


def parse(partition: int, offset: int, value: bytes) -> Letter | None:
    """The letter in a Kafka record; None when the record is none."""
    try:
        found = orjson.loads(value)
        reason, detail, topic, received_at, text = (
            str(found[key])
            for key in ("reason", "detail", "topic", "received_at", "payload_base64")
        )
        payload = base64.b64decode(text, validate=True)
        received_ms = round(datetime.fromisoformat(received_at).timestamp() * 1000)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError, binascii.Error):
        return None
    digest = hashlib.sha256(value).hexdigest()[:16]
    node = _node(topic, payload)
    return Letter(partition, offset, reason, detail, topic, received_ms, payload, digest, node)


def _node(topic: str, payload: bytes) -> str | None:
    try:
        parts = parse_mqtt_topic(topic)
        return node_key(parts.site, parts.node)
    except UnusableMessage:
        pass
    try:
        found = loads(payload)
    except UnusableMessage:
        return None
    if isinstance(found, dict) and is_name(found.get("site")) and is_name(found.get("node")):
        return node_key(found["site"], found["node"])
    return None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters are meant; an empty collection or None leaves that open.

    ``nodes`` holds ``SITE/NODE`` or ``NODE``, ``places`` ``PARTITION:OFFSET``; times are Unix
    milliseconds of the letter's receipt, half-open.
    """

    reasons: Collection[str] = ()
    topics: Collection[str] = ()
    nodes: Collection[str] = ()
    places: Collection[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing was chosen."""
        named = (self.reasons, self.topics, self.nodes, self.places)
        return not any(named) and self.since_ms is None and self.until_ms is None

    def takes(self, letter: Letter) -> bool:
        """Whether the letter is meant."""
        if self.reasons and letter.reason not in self.reasons:
            return False
        if self.topics and letter.topic not in self.topics:
            return False
        if self.places and letter.place not in self.places:
            return False
        if self.nodes:
            node = letter.node or ""
            if node not in self.nodes and node.partition("/")[2] not in self.nodes:
                return False
        if self.since_ms is not None and letter.received_ms < self.since_ms:
            return False
        return self.until_ms is None or letter.received_ms < self.until_ms


class Marks:
    """Which letters were sent again. Memory is bounded by ``limit`` marks."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.limit = limit
        self._digests: dict[tuple[int, int], str] = {}

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def full(self) -> bool:
        """Whether no further mark can be remembered."""
        return len(self._digests) >= self.limit

    def read(self, value: bytes) -> None:
        """Take in a record of ``rigcanary.dead-letter-resent``; what is none is passed over."""
        try:
            found = orjson.loads(value)
            place = (int(found["partition"]), int(found["offset"]))
            self._digests[place] = str(found["digest"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return

    def has(self, letter: Letter) -> bool:
        """Whether the letter was sent again."""
        return self._digests.get((letter.partition, letter.offset)) == letter.digest

    def add(self, letter: Letter, at_ms: int) -> bytes:
        """Mark a letter; returns the record that says so to others."""
        self._digests[letter.partition, letter.offset] = letter.digest
        return orjson.dumps(
            {
                "schema": f"{RESENT}/1",
                "partition": letter.partition,
                "offset": letter.offset,
                "digest": letter.digest,
                "topic": letter.topic,
                "resent_at": rfc3339(at_ms),
            }
        )
