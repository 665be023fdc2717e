"""The messages an agent publishes (contracts section 2), and what identifies them."""

import hashlib
import os
import time
import uuid
from pathlib import Path
from typing import Any, Literal

import orjson

from agents.source import DeviceReading
from contract.message import EVENT_SCHEMA, TELEMETRY_SCHEMA, Message
from contract.signals import SIGNAL_NAMES

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def new_boot_id() -> str:
    """An identity for one run of an agent: 32 hexadecimal digits, never used before.

    ``seq`` starts at 0 with each run, so the machine's own boot id is not enough: an agent
    restarted on the same boot would repeat (boot_id, seq). It is the hash of the machine's boot
    id (Linux: /proc/sys/kernel/random/boot_id; random elsewhere), the process id and its start.
    """
    try:
        machine = _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        machine = uuid.uuid4().hex
    own = f"{machine} {os.getpid()} {time.time_ns()}"
    return hashlib.sha256(own.encode()).hexdigest()[:32]


class Envelope:
    """Builds one agent run's messages, each kind with its own ``seq`` rising by one.

    A gap in the ``seq`` of the telemetry thus means lost telemetry, whatever events there were.
    """

    def __init__(self, site: str, node: str, boot_id: str) -> None:
        self.site = site
        self.node = node
        self.boot_id = boot_id
        self._telemetry_seq = 0
        self._event_seq = 0

    def telemetry(
        self, ts: float, interval_seconds: float, devices: list[DeviceReading]
    ) -> Message:
        """A telemetry message sampled at ``ts`` (Unix seconds UTC)."""
        seq = self._telemetry_seq
        self._telemetry_seq += 1
        return {
            "schema": TELEMETRY_SCHEMA,
            "site": self.site,
            "node": self.node,
            "boot_id": self.boot_id,
            "seq": seq,
            "ts": ts,
            "interval_seconds": interval_seconds,
            "devices": devices,
        }

    def event(
        self,
        ts: float,
        device: str | None,
        type_: str,
        message: str,
        code: int | None = None,
        raw: str | None = None,
    ) -> Message:
        """A structural event; ``type_`` is one of ``contract.message.EVENT_TYPES``."""
        seq = self._event_seq
        self._event_seq += 1
        return {
            "schema": EVENT_SCHEMA,
            "site": self.site,
            "node": self.node,
            "boot_id": self.boot_id,
            "seq": seq,
            "ts": ts,
            "device": device,
            "type": type_,
            "code": code,
            "message": message,
            "raw": raw,
        }

    def status(self, state: Literal["online", "offline"], ts: float) -> bytes:
        """The retained status payload."""
        return orjson.dumps({"state": state, "boot_id": self.boot_id, "ts": ts})


def encode(message: Message) -> bytes:
    """JSON bytes on one line; NaN and infinity become null."""
    return orjson.dumps(message)


_FIRST = ("device", "index", "vendor", "model", "serial", "driver", "state")


def in_order(reading: DeviceReading) -> dict[str, Any]:
    """``reading`` with every sensor of the vocabulary, null where it has none, in fixed order.

    A ``lost`` or ``unknown`` device carries its identity, its state, and a sensor only where
    there is a value for it all the same.
    """
    out: dict[str, Any] = {key: reading[key] for key in _FIRST if key in reading}
    absent = reading.get("state") in ("lost", "unknown")
    for name in SIGNAL_NAMES:
        value = reading.get(name)
        if value is not None or not absent:
            out[name] = value
    if reading.get("methods"):
        out["methods"] = reading["methods"]
    return out
