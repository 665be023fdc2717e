"""From MQTT messages to Kafka records: check, route, pack (pure, no I/O)."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import orjson
from aiokafka.partitioner import murmur2

from contract import topics
from contract.deadletter import MAX_PAYLOAD_BYTES, dead_letter
from contract.errors import UnusableMessage
from contract.message import (
    EVENT_SCHEMA,
    MAX_TEXT,
    check_event,
    check_telemetry,
    check_topic_agrees,
    check_ts_ms,
    loads,
)

_SUSPICIOUS_BRACKETS: Final = 600
_HEAD: Final = b'{"messages":['
_TAIL: Final = b"]}"


@dataclass(slots=True, eq=False)
class Incoming:
    """One MQTT message as it arrived.

    ``connection`` numbers the MQTT connection: a message id means nothing on another one.
    ``received_ms`` is Unix milliseconds UTC.
    """

    topic: str
    payload: bytes
    received_ms: int
    message_id: int = 0
    qos: int = 1
    retained: bool = False
    connection: int = 0


@dataclass(slots=True, eq=False)
class Outgoing:
    """One Kafka record. ``partition`` None leaves the choice to the producer's partitioner."""

    topic: str
    key: bytes | None
    value: bytes
    partition: int | None = None
    messages: list[Incoming] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What one call of :func:`pack` saw."""

    kinds: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    repaired: int = 0
    """Messages whose NaN or Infinity, which is no JSON, became null."""

    def count(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner gives ``key``."""
    return (int(murmur2(key)) & 0x7FFFFFFF) % partitions


def decode(payload: bytes) -> tuple[Any, bytes]:
    """The JSON of a payload, and bytes of it that every strict reader accepts.

    Those are the original bytes, unless only the tolerant reader understood them (NaN).

    Raises:
        UnusableMessage: ``too-large`` or ``not-json``.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UnusableMessage("too-large", f"{len(payload)} bytes, {MAX_PAYLOAD_BYTES} allowed")
    try:
        message = orjson.loads(payload)
        if payload.count(b"[") + payload.count(b"{") > _SUSPICIOUS_BRACKETS:
            # Inside a record it lies two levels deeper, where orjson's limit of depth must
            # not make the whole record unreadable.
            orjson.loads(_HEAD + payload + _TAIL)
        return message, payload
    except orjson.JSONDecodeError:
        message = loads(payload)
    try:
        return message, orjson.dumps(message)
    except orjson.JSONEncodeError as error:
        raise UnusableMessage("not-json", f"cannot be written as JSON again: {error}") from None


def status_event(message: Any, topic: topics.MqttTopic, incoming: Incoming) -> bytes:
    """The event ``node_online`` or ``node_offline`` of a status message, as JSON bytes.

    ``ts`` is the status's own: a will carries the instant of the connection, not of the loss,
    so ``received_ts`` says when the bridge heard of it, and ``retained`` that it is old news.

    Raises:
        UnusableMessage: when the payload is not a status.
    """
    if not isinstance(message, dict):
        raise UnusableMessage("schema", "the status is not a JSON object")
    for key in ("state", "boot_id", "ts"):
        if key not in message:
            raise UnusableMessage("missing-key", f"{key} is absent")
    state, boot_id = message["state"], message["boot_id"]
    if state not in ("online", "offline"):
        raise UnusableMessage("bad-value", f"state {state!r:.60} is not online or offline")
    if not isinstance(boot_id, str) or not 0 < len(boot_id) <= MAX_TEXT:
        raise UnusableMessage("bad-value", f"boot_id must be text of 1 to {MAX_TEXT} characters")
    check_ts_ms(message, incoming.received_ms)
    return orjson.dumps(
        {
            "schema": EVENT_SCHEMA,
            "site": topic.site,
            "node": topic.node,
            "boot_id": boot_id,
            "seq": 0,
            "ts": message["ts"],
            "device": None,
            "type": f"node_{state}",
            "code": None,
            "message": f"{topic.node} is {state}",
            "raw": incoming.payload.decode("utf-8", "replace"),
            "retained": incoming.retained,
            "received_ts": incoming.received_ms / 1000,
        }
    )


def pack(
    incoming: Iterable[Incoming], partitions: int, max_record_bytes: int
) -> tuple[list[Outgoing], Tally]:
    """Make Kafka records of messages, in order of arrival per partition.

    Good telemetry of one of the ``partitions`` becomes one record ``{"messages": […]}`` of at
    most about ``max_record_bytes`` (a larger single message stands alone), by joining the
    original bytes; each event and status becomes a record; the rest becomes dead letters.
    """
    records: list[Outgoing] = []
    open_packs: dict[int, _Pack] = {}
    tally = Tally()
    for item in incoming:
        key: bytes | None = None
        kind = "unknown"
        try:
            topic = topics.parse_mqtt_topic(item.topic)
            key, kind = topics.node_key(topic.site, topic.node).encode(), topic.kind
            if kind == "status" and not item.payload:
                tally.count("status_cleared")  # how MQTT takes a retained message back
                continue
            message, body = decode(item.payload)
            tally.repaired += body is not item.payload
            if kind == "telemetry":
                check_topic_agrees(check_telemetry(message, item.received_ms), topic)
                partition = partition_of(key, partitions)
                _add(open_packs, records, partition, key, body, item, max_record_bytes)
            elif kind == "events":
                check_topic_agrees(check_event(message, item.received_ms), topic)
                records.append(Outgoing(topics.EVENTS, key, body, None, [item]))
            else:
                event = status_event(message, topic, item)
                records.append(Outgoing(topics.EVENTS, key, event, None, [item]))
        except UnusableMessage as error:
            records.append(dead_record(item, key, error))
            tally.dead[error.reason] = tally.dead.get(error.reason, 0) + 1
        tally.count(kind)
    records.extend(p.close() for p in open_packs.values())
    return records, tally


def dead_record(item: Incoming, key: bytes | None, error: UnusableMessage) -> Outgoing:
    """The dead letter of one message."""
    topic = item.topic[:1000]
    value = dead_letter(error.reason, error.detail, topic, item.received_ms, item.payload)
    return Outgoing(topics.DEAD_LETTER, key, value, None, [item])


def split(record: Outgoing) -> list[Outgoing]:
    """Halve a record that Kafka found too large; a single message becomes a dead letter."""
    if record.topic == topics.DEAD_LETTER:
        item = record.messages[0]
        error = UnusableMessage("too-large", "Kafka refused its bytes, which are lost")
        bare = replace(item, payload=b"")
        return [dead_record(bare, record.key, error)]
    if len(record.messages) < 2:
        error = UnusableMessage("too-large", "Kafka refuses a record of this size")
        return [dead_record(record.messages[0], record.key, error)]
    half = len(record.messages) // 2
    return [_joined(record, part) for part in (record.messages[:half], record.messages[half:])]


def _joined(record: Outgoing, messages: list[Incoming]) -> Outgoing:
    value = _HEAD + b",".join(decode(m.payload)[1] for m in messages) + _TAIL
    return Outgoing(record.topic, record.key, value, record.partition, messages)


class _Pack:
    """A telemetry record being filled."""

    __slots__ = ("bodies", "key", "messages", "partition", "size")

    def __init__(self, partition: int, key: bytes) -> None:
        self.partition = partition
        self.key: bytes | None = key
        self.bodies: list[bytes] = []
        self.messages: list[Incoming] = []
        self.size = len(_HEAD) + len(_TAIL)

    def add(self, key: bytes, body: bytes, item: Incoming) -> None:
        if key != self.key:
            self.key = None
        self.bodies.append(body)
        self.messages.append(item)
        self.size += len(body) + 1

    def close(self) -> Outgoing:
        value = _HEAD + b",".join(self.bodies) + _TAIL
        return Outgoing(topics.TELEMETRY, self.key, value, self.partition, self.messages)


def _add(
    packs: dict[int, _Pack],
    records: list[Outgoing],
    partition: int,
    key: bytes,
    body: bytes,
    item: Incoming,
    max_record_bytes: int,
) -> None:
    current = packs.get(partition)
    if current is not None and current.size + len(body) > max_record_bytes:
        records.append(current.close())
        current = None
    if current is None:
        current = packs[partition] = _Pack(partition, key)
    current.add(key, body, item)
