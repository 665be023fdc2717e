"""What is said of a webhook once it is delivered or given up."""

from typing import TypedDict

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
    },
)
"""Value of ``rigcanary.deliveries``: ``status`` is ``delivered`` or ``dead`` (given up, receiver
gone or no longer configured: ``error`` says which)."""


def report(
    outgoing: Outgoing, attempt: int, error: str | None, delivered_at: float | None
) -> Delivery:
    """The delivery of ``outgoing`` after ``attempt`` requests; ``delivered_at`` in Unix seconds."""
    return {
        "webhook-id": outgoing.webhook_id,
        "receiver": outgoing.receiver,
        "type": outgoing.type,
        "attempt": attempt,
        "status": "dead" if delivered_at is None else "delivered",
        "delivered_at": None if delivered_at is None else rfc3339(round(delivered_at * 1000)),
        "error": error,
    }
