"""The agent's way out: a bounded queue in front of its MQTT connection."""

import logging
import threading
from collections import deque

from agents.edge.connection import Connection
from contract.errors import RigcanaryError

log = logging.getLogger(__name__)


class Publisher:
    """Never makes the sampler wait: messages queue here while the broker is slow or away.

    A full queue drops its oldest message; ``dropped`` counts those, and
    ``refused`` what the MQTT client would not take. Sample times are in the
    messages, so what comes late still belongs to its own minute.
    """

    def __init__(self, connection: Connection, queue_messages: int) -> None:
        self._connection = connection
        self._limit = queue_messages
        self._queue: deque[tuple[str, bytes]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.dropped = 0
        self.refused = 0

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the connection that is there now."""
        return self._connection.connected.is_set()

    @property
    def acknowledged(self) -> int:
        """How many messages the broker has acknowledged."""
        return self._connection.acknowledged

    def __len__(self) -> int:
        return len(self._queue)

    def open(self) -> None:
        """Start connecting and sending, in the background."""
        self._connection.open()
        self._thread.start()

    def publish(self, topic: str, payload: bytes) -> None:
        """Queue a QoS 1 message; returns at once."""
        with self._changed:
            if len(self._queue) >= self._limit:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append((topic, payload))
            self._changed.notify()

    def close(self, timeout: float = 5.0) -> int:
        """Send what is queued for up to ``timeout`` seconds, say offline, disconnect.

        Returns how many queued messages were left unsent.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout if self._may_send() else 0.1)
        self._connection.close(timeout)
        return len(self._queue)

    def _may_send(self) -> bool:
        """Whether the broker is there, or is being connected to for the first time."""
        return self._connection.connected.is_set() or self._connection.trouble is None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if not self._queue:
                    return
            # Before the first connect and during an outage the messages stay in our own
            # queue, where the oldest can still be dropped.
            if not self._connection.connected.wait(0.1 if self._stopping else 0.5):
                if self._stopping and not self._may_send():
                    return
                continue
            with self._changed:
                if not self._queue:
                    continue
                topic, payload = self._queue.popleft()
            try:
                while not self._connection.send(topic, payload, timeout=0.5):
                    if self._stopping and not self._may_send():
                        with self._changed:
                            self._queue.appendleft((topic, payload))
                        return
            except RigcanaryError as error:
                self.refused += 1
                log.error("a message was thrown away: %s", error)
