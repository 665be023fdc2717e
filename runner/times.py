"""Milliseconds UTC inside, RFC 3339 outside."""

from datetime import UTC, datetime


def to_rfc3339(ms: int | None) -> str | None:
    """``1767225600123`` → ``2026-01-01T00:00:00.123Z``; None stays None."""
    if ms is None:
        return None
    moment = datetime.fromtimestamp(ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_rfc3339(text: str) -> int:
    """Milliseconds UTC of an RFC 3339 time; one without a zone is UTC.

    Raises:
        ValueError: when it is not such a time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
