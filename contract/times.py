"""Instants as text."""

from datetime import UTC, datetime


def rfc3339(at_ms: int) -> str:
    """Unix milliseconds UTC as ``2026-01-01T00:00:00.000Z``."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
