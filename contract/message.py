"""Telemetry, event and status messages: their shape, and the check of their envelope.

The check here decides whether a message can be used at all; single impossible sensor values
are repaired later (``stream.validate``), where they are counted.
"""

import json
import math
from typing import Any, Final, cast

import orjson

from contract.deadletter import MAX_PAYLOAD_BYTES
from contract.errors import UnusableMessage
from contract.minute import FUTURE_MS
from contract.topics import MqttTopic, is_name

TELEMETRY_SCHEMA: Final = "rigcanary.telemetry/1"
EVENT_SCHEMA: Final = "rigcanary.event/1"

EVENT_TYPES: Final = (
    "device_lost",
    "device_unresponsive",
    "device_returned",
    "xid",
    "ecc_uncorrected",
    "pcie_width_low",
    "node_online",
    "node_offline",
)
"""Types of contracts section 2, and the two that the bridge makes of a node's status."""

MAX_DEVICES: Final = 256
MAX_TEXT: Final = 128
_MIN_TS: Final = 946_684_800.0  # 2000-01-01: a clock that was never set

Message = dict[str, Any]


def _null(_: str) -> None:
    return None


def _finite_or_null(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _int_or_float(text: str) -> int | float | None:
    # 18 digits always fit 64 bits, which is what every other reader of the message has.
    return int(text) if len(text) <= 18 else _finite_or_null(text)


def loads(payload: bytes) -> Any:
    """JSON of ``payload``; ``NaN`` and ``Infinity`` (which Python writes) are read as null.

    Raises:
        UnusableMessage: ``too-large`` or ``not-json``.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UnusableMessage("too-large", f"{len(payload)} bytes, {MAX_PAYLOAD_BYTES} allowed")
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        detail = str(error)
    try:
        return json.loads(
            payload, parse_constant=_null, parse_float=_finite_or_null, parse_int=_int_or_float
        )
    except (ValueError, RecursionError):
        raise UnusableMessage("not-json", detail) from None


def _text(message: Message, key: str) -> str:
    value = message[key]
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise UnusableMessage("bad-value", f"{key} must be text of 1 to {MAX_TEXT} characters")
    return value


def _number(message: Message, key: str) -> float:
    value = message[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnusableMessage("bad-value", f"{key} must be a finite number")
    return float(value)


def check_ts_ms(message: Message, received_ms: int) -> int:
    """``ts`` of a message as integer milliseconds UTC.

    Raises:
        UnusableMessage: ``bad-value`` when it is no time stamp of this century, ``future``
            when it lies more than five minutes past ``received_ms``.
    """
    ts = _number(message, "ts")
    if not _MIN_TS <= ts <= 1e11:
        raise UnusableMessage("bad-value", f"ts {ts!r} is not Unix seconds of this century")
    ts_ms = round(ts * 1000)
    if ts_ms > received_ms + FUTURE_MS:
        ahead = (ts_ms - received_ms) / 1000
        raise UnusableMessage("future", f"ts is {ahead:.0f} s past the receiver's clock")
    return ts_ms


def _check_envelope(
    message: Any, schema: str, required: tuple[str, ...], received_ms: int
) -> Message:
    if not isinstance(message, dict):
        raise UnusableMessage("schema", "the payload is not a JSON object")
    if message.get("schema") != schema:
        raise UnusableMessage("schema", f"schema is {message.get('schema')!r:.60}, not {schema!r}")
    for key in required:
        if key not in message:
            raise UnusableMessage("missing-key", f"{key} is absent")
    for key in ("site", "node"):
        if not is_name(message[key]):
            raise UnusableMessage("bad-value", f"{key} must be 1–64 of A–Z a–z 0–9 . _ -")
    _text(message, "boot_id")
    seq = message["seq"]
    if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < 2**63:
        raise UnusableMessage("bad-value", "seq must be an integer of 0 or more")
    check_ts_ms(message, received_ms)
    return cast(Message, message)


def check_telemetry(message: Any, received_ms: int) -> Message:
    """Check the envelope of a decoded telemetry message and return it.

    ``received_ms`` is the receiver's clock, Unix milliseconds UTC.

    Raises:
        UnusableMessage: with the reason that the dead letter states.
    """
    required = ("site", "node", "boot_id", "seq", "ts", "devices")
    checked = _check_envelope(message, TELEMETRY_SCHEMA, required, received_ms)
    devices = checked["devices"]
    if not isinstance(devices, list):
        raise UnusableMessage("bad-value", "devices must be a list")
    if len(devices) > MAX_DEVICES:
        raise UnusableMessage("bad-value", f"{len(devices)} devices, {MAX_DEVICES} allowed")
    seen = set()
    for device in devices:
        if not isinstance(device, dict):
            raise UnusableMessage("bad-value", "an entry of devices is not an object")
        if "device" not in device:
            raise UnusableMessage("missing-key", "device is absent in an entry of devices")
        name = _text(device, "device")
        if name in seen:
            raise UnusableMessage("bad-value", f"device {name!r} stands twice in one message")
        seen.add(name)
    return checked


def check_event(message: Any, received_ms: int) -> Message:
    """Check the envelope of a decoded event message and return it.

    Raises:
        UnusableMessage: with the reason that the dead letter states.
    """
    required = ("site", "node", "boot_id", "seq", "ts", "type")
    checked = _check_envelope(message, EVENT_SCHEMA, required, received_ms)
    if checked["type"] not in EVENT_TYPES:
        raise UnusableMessage("bad-value", f"event type {checked['type']!r:.60} is not known")
    if checked.get("device") is not None:
        _text(checked, "device")
    return checked


def check_topic_agrees(message: Message, topic: MqttTopic) -> None:
    """Raise ``UnusableMessage('topic')`` when the body names another site or node."""
    if (message["site"], message["node"]) != (topic.site, topic.node):
        raise UnusableMessage(
            "topic",
            f"topic says {topic.site}/{topic.node}, body says {message['site']}/{message['node']}",
        )
