"""The body of a webhook (contracts section 6)."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from contract.times import rfc3339

MAX_BODY_BYTES: Final = 20_000
"""Standard Webhooks 1.0.0 asks for payloads under 20 kB."""


def body(webhook_type: str, timestamp_ms: int, data: Mapping[str, Any]) -> bytes:
    """``{"type", "timestamp", "data"}`` as JSON; the timestamp is the event's, not the sending's.

    Evidence is cut to its largest contributions when the body would be 20 kB or more.

    Raises:
        ValueError: when it is too large all the same.
    """
    whole: dict[str, Any] = {
        "type": webhook_type,
        "timestamp": rfc3339(timestamp_ms),
        "data": dict(data),
    }
    encoded = orjson.dumps(whole)
    evidence = whole["data"].get("evidence")
    if len(encoded) >= MAX_BODY_BYTES and isinstance(evidence, list):
        ranked = sorted(evidence, key=lambda item: -float(item.get("contribution") or 0.0))
        keep = len(ranked)
        while keep and len(encoded) >= MAX_BODY_BYTES:
            keep //= 2
            whole["data"]["evidence"] = ranked[:keep]
            encoded = orjson.dumps(whole)
    if len(encoded) >= MAX_BODY_BYTES:
        raise ValueError(
            f"{webhook_type} webhook of {len(encoded)} bytes; it must stay under {MAX_BODY_BYTES}"
        )
    return encoded
