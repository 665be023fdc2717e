"""The two Faust tables, written with an explicit partition.

``table[key] = value`` takes the partition of the event that is being processed, which is wrong
as soon as anything else is written; and outside an agent it is refused. Keys begin with the
partition: the memory store keeps what it wrote for partitions that went to another worker.
"""

from collections.abc import Iterator
from typing import Any, Final

from contract.minute import MINUTE_MS
from stream.topic_settings import changelog_config
from stream.window import RING_MINUTES

ROWS: Final = "rows"
NODES: Final = "nodes"
_OPTIONS: Final = {
    "key_type": bytes,
    "value_type": bytes,
}


def row_key(partition: int, node_key: str, minute_ms: int) -> bytes:
    """Ring key: a minute replaces that of ``RING_MINUTES`` before, so nothing must be deleted."""
    slot = (minute_ms // MINUTE_MS) % RING_MINUTES
    return f"{partition:05d}|{node_key}|{slot:02d}".encode()


def state_key(partition: int, node_key: str) -> bytes:
    """Key of a node's state record."""
    return f"{partition:05d}|{node_key}".encode()


class Tables:
    """Minute records and node states with their changelogs."""

    def __init__(self, app: Any, partitions: int, min_insync: int | None = None) -> None:
        config = changelog_config(min_insync)
        options = {**_OPTIONS, "partitions": partitions, "extra_topic_configs": config}
        self.rows = app.Table(ROWS, **options)
        self.nodes = app.Table(NODES, **options)

    def put_row(self, partition: int, key: bytes, value: bytes) -> Any:
        """Write a minute record; await the result to know that Kafka has it."""
        self.rows.data[key] = value
        return self.rows.send_changelog(partition, key, value)

    def put_state(self, partition: int, key: bytes, value: bytes) -> Any:
        """Write a node's state; await the result to know that Kafka has it."""
        self.nodes.data[key] = value
        return self.nodes.send_changelog(partition, key, value)

    def row(self, key: bytes) -> bytes | None:
        """The record under a ring key, of whatever minute."""
        value: bytes | None = self.rows.data.get(key)
        return value

    def stored(self, table: Any, partitions: set[int]) -> Iterator[tuple[int, bytes]]:
        """Values of the given partitions as ``(partition, value)``."""
        for key, value in list(table.data.items()):
            partition = int(key[:5])
            if partition in partitions and value is not None:
                yield partition, value
