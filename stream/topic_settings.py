"""What topics are created with where they are absent: how long Kafka keeps what is in them.

A topic that is there keeps what its owner gave it.
"""

from typing import Final

from contract.topics import (
    COMMANDS,
    DEAD_LETTER,
    DECISIONS,
    DELIVERIES,
    EVENTS,
    MINUTES,
    RESENT,
    RISKS,
    TELEMETRY,
)

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

RETENTION_MS: Final[dict[str, int]] = {
    # A worker that was away longer loses what is older: 12,500 nodes write some 10 MB/s.
    TELEMETRY: _DAY_MS,
    EVENTS: 7 * _DAY_MS,
    MINUTES: 7 * _DAY_MS,
    RISKS: 7 * _DAY_MS,
    DECISIONS: 30 * _DAY_MS,
    DELIVERIES: 30 * _DAY_MS,
    DEAD_LETTER: 30 * _DAY_MS,
    # Read where the worker stands, never from the beginning; kept as a record of who said what.
    COMMANDS: 30 * _DAY_MS,
    # As long as the letters that it marks, and a day more.
    RESENT: 31 * _DAY_MS,
}

MAX_RECORD_BYTES: Final = 4_000_000
"""Of a minute row or of risks: a node may name 512 devices, each some 3 kB of JSON."""

CHANGELOG_CONFIG: Final[dict[str, str]] = {
    # Kafka compacts whole segments only, and by default one may span a week or a gigabyte: a
    # worker that starts would read all of that. Faust itself adds cleanup.policy=compact.
    "segment.ms": str(_HOUR_MS),
    "max.message.bytes": str(MAX_RECORD_BYTES),
}


def changelog_config(min_insync: int | None = None) -> dict[str, str]:
    """Kafka's own settings of a table's changelog; ``min_insync`` as in :func:`topic_config`."""
    if min_insync is None:
        return CHANGELOG_CONFIG
    return {**CHANGELOG_CONFIG, "min.insync.replicas": str(min_insync)}


def topic_config(name: str, min_insync: int | None = None) -> dict[str, str]:
    """Kafka's own settings of one of our topics, as ``CreateTopics`` takes them.

    ``min_insync`` is how many replicas must have a record; None leaves it to the brokers.
    """
    retention_ms = RETENTION_MS[name]
    # Only whole segments are deleted, and by default one spans a week: a topic that is small
    # would keep its telemetry that long.
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "segment.ms": str(max(_HOUR_MS, retention_ms // 24)),
    }
    if name in (MINUTES, RISKS):
        config["max.message.bytes"] = str(MAX_RECORD_BYTES)
    if min_insync is not None:
        config["min.insync.replicas"] = str(min_insync)
    return config
