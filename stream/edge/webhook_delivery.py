"""What is said of a webhook once it is delivered or given up."""

from typing import Any, TypedDict

import orjson

from contract.times import rfc3339
from stream.edge.webhook_http import Outgoing

Delivery = TypedDict(
    "Delivery",
    {
        "webhook-id": str,
        "receiver": str,
        "type": str,
        "attempt": int,
        "status": str,
        "delivered_at": str | None,
        "error": str | None,
        "site": str | None,
        "node": str | None,
        "device": str | None,
        "timestamp": str | None,
        "created_at": str | None,
        "body": str | None,
    },
)
"""Value of ``rigcanary.deliveries``. ``status`` is ``delivered``, ``dead`` (given up, receiver
gone or no longer configured: ``error`` says which) or ``retry`` (a person asked for it).
``timestamp`` is the decision's, ``created_at`` when it was first recorded. ``body`` is kept of what
is not delivered, so that it can be sent once more."""


def report(
    outgoing: Outgoing, attempt: int, error: str | None, delivered_at: float | None
) -> Delivery:
    """The delivery of ``outgoing`` after ``attempt`` requests; ``delivered_at`` in Unix seconds."""
    whole: dict[str, Any] = orjson.loads(outgoing.body)
    data = whole["data"]
    created = outgoing.created_at
    return {
        "webhook-id": outgoing.webhook_id,
        "receiver": outgoing.receiver,
        "type": outgoing.type,
        "attempt": attempt,
        "status": "dead" if delivered_at is None else "delivered",
        "delivered_at": None if delivered_at is None else rfc3339(round(delivered_at * 1000)),
        "error": error,
        "site": data.get("site"),
        "node": data.get("node"),
        "device": data.get("device"),
        "timestamp": whole.get("timestamp"),
        "created_at": None if created is None else rfc3339(round(created * 1000)),
        "body": outgoing.body.decode() if delivered_at is None else None,
    }
