"""Dead letters of deliveries, read from ``rigcanary.deliveries``: which are there, which may go.

The topic is an upsert by webhook-id and receiver: the last record says how a delivery stands.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from stream.receivers import WEBHOOK_TYPES

MAX_DEAD: Final = 10_000
"""Dead letters that are remembered at once, the newest ones."""
MAX_RECORD_BYTES: Final = 256 * 1024
_TEXTS: Final = ("webhook-id", "receiver", "type", "status")

Key = tuple[str, str]
Subject = tuple[str, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Stored:
    """One record of the topic and where it lies; ``node_key`` is the record's key."""

    partition: int
    node_key: str
    value: Mapping[str, Any]

    @property
    def key(self) -> Key:
        return str(self.value["webhook-id"]), str(self.value["receiver"])

    @property
    def subject(self) -> Subject:
        """Receiver, site, node and device: what order is kept within."""
        v = self.value
        return str(v["receiver"]), v.get("site"), v.get("node"), v.get("device")


def read_record(partition: int, key: bytes | None, value: bytes | None) -> Stored | None:
    """A record of the topic, ``None`` when it is not one of ours."""
    if value is None or len(value) > MAX_RECORD_BYTES:
        return None
    try:
        found = orjson.loads(value)
        node_key = (key or b"").decode()
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(found.get(k), str) for k in _TEXTS):
        return None
    return Stored(partition, node_key, found)


class DeadLetters:
    """How every delivery stands; bounded."""

    def __init__(self) -> None:
        self._open: dict[Key, Stored] = {}
        self._newest: dict[Subject, tuple[str, str]] = {}
        self.forgotten = 0
        """Dead letters that did not fit any more."""

    def take(self, stored: Stored) -> None:
        """Take one record in, in the topic's order."""
        self._open.pop(stored.key, None)
        if stored.value["status"] == "delivered":
            at = stored.value.get("timestamp")
            if isinstance(at, str):
                self._newest[stored.subject] = max(
                    self._newest.get(stored.subject, ("", "")), (at, str(stored.value["type"]))
                )
                if len(self._newest) > MAX_DEAD:
                    self._newest.pop(next(iter(self._newest)))
            return
        self._open[stored.key] = stored
        if len(self._open) > MAX_DEAD:
            self._open.pop(next(iter(self._open)))
            self.forgotten += 1

    def dead(self, receiver: str | None = None) -> list[Stored]:
        """Dead letters, those being tried again too, in the order in which they were decided."""
        found = [s for s in self._open.values() if receiver in (None, s.value["receiver"])]
        return sorted(found, key=lambda s: str(s.value.get("timestamp") or ""))

    def retries(self) -> Iterable[Stored]:
        """Those that a person asked for again and that are not through yet."""
        return [s for s in self._open.values() if s.value["status"] == "retry"]

    def overtaken_by(self, stored: Stored) -> str | None:
        """Type of what the receiver has been told of the same device since, or ``None``.

        Sent after that, a request would arrive in the wrong order: a migration that was withdrawn,
        or a card that was released long ago, would be moved.
        """
        at, kind = self._newest.get(stored.subject, ("", ""))
        return kind if at > str(stored.value.get("timestamp") or "") else None


def check_body(stored: Stored) -> str | None:
    """Why a dead letter cannot be sent once more, or ``None``."""
    body = stored.value.get("body")
    if not isinstance(body, str):
        return "its body was not kept"
    try:
        whole = orjson.loads(body)
    except ValueError:
        return "its body is not JSON"
    if (
        not isinstance(whole, dict)
        or not isinstance(whole.get("data"), dict)
        or not isinstance(whole.get("timestamp"), str)
        or whole.get("type") not in WEBHOOK_TYPES
        or whole.get("type") != stored.value["type"]
    ):
        return "its body is not a webhook's"
    return None


def as_retry(stored: Stored) -> bytes:
    """The record that asks the worker to send it once more."""
    return orjson.dumps({**stored.value, "status": "retry"})
