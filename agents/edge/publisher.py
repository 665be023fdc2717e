"""The agent's way out: fresh messages at once, waiting ones in order at a bounded rate."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from agents.edge.connection import Connection
from agents.edge.outbox import Outbox, Ticket
from contract.errors import RigcanaryError

log = logging.getLogger(__name__)

BACKLOG_PER_SECOND: Final = 50.0
"""Waiting messages sent a second after the broker's return: an hour at 5 s in a quarter of a
minute, and a hundred rigs together stay within what one broker takes."""
BURST: Final = 20.0
"""So many waiting messages go before a fresh one: a short interruption keeps the order."""
FRESH_BESIDE_OUTBOX: Final = 256
SYNC_LOOK_SECONDS: Final = 1.0


class _Queued(NamedTuple):
    topic: str
    payload: bytes
    ticket: Ticket | None


class Publisher:
    """Never makes the sampler wait: messages wait here while the broker is slow or away.

    With an ``outbox`` each message is on disk before it is sent and waits there; without, or where
    the disk refuses, it waits in memory, at most ``queue_messages``, and a full queue drops
    its oldest. ``dropped_memory`` counts those, ``refused`` what the MQTT client would not take.
    Sample times are in the messages, so what comes late still belongs to its own minute.

    Once the broker is there a fresh message does not wait for the waiting ones, which take at most
    half of the places in flight and ``backlog_per_second``.
    """

    def __init__(
        self,
        connection: Connection,
        queue_messages: int,
        outbox: Outbox | None = None,
        max_inflight: int = 20,
        backlog_per_second: float = BACKLOG_PER_SECOND,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._limit = queue_messages
        self._outbox = outbox
        self._fresh: deque[_Queued] = deque()
        self._waiting: deque[_Queued] = deque()
        self._fresh_limit = queue_messages if outbox is None else FRESH_BESIDE_OUTBOX
        self._changed = threading.Condition()
        self._delivered: deque[Ticket] = deque()
        self._stopping = False
        self._monotonic = monotonic
        self._rate = backlog_per_second
        self._tokens = BURST
        self._counted_at = monotonic()
        self._synced_at = monotonic()
        self._backlog_places = max(1, max_inflight // 2)
        self._backlog_flight = 0
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.dropped_memory = 0
        self.refused = 0

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the connection that is there now."""
        return self._connection.connected.is_set()

    @property
    def acknowledged(self) -> int:
        """How many messages the broker has acknowledged."""
        return self._connection.acknowledged

    @property
    def denied(self) -> int:
        """How many messages the broker refused by name (MQTT 5)."""
        return self._connection.denied

    @property
    def connections(self) -> int:
        """How many connections were made."""
        return self._connection.connections

    @property
    def takeovers(self) -> int:
        """How often another client seems to have taken this one's client id."""
        return self._connection.takeovers

    @property
    def failures(self) -> int:
        """Connects in a row that failed or did not hold."""
        return self._connection.failures

    @property
    def dropped(self) -> int:
        """How many messages were given up, on disk and in memory."""
        on_disk = 0 if self._outbox is None else sum(self._outbox.dropped.values())
        return self.dropped_memory + on_disk

    def __len__(self) -> int:
        """Messages that wait in memory."""
        return len(self._fresh) + len(self._waiting)

    def open(self) -> None:
        """Start connecting and sending, in the background."""
        self._connection.open()
        self._thread.start()

    def publish(self, topic: str, payload: bytes) -> None:
        """Take a QoS 1 message; returns at once."""
        # Without a connection nothing can be on its way: the backlog may have it right away.
        connected = self.connected
        ticket = None
        if self._outbox is not None:
            if not connected and self._outbox.store(topic, payload):
                return
            ticket = self._outbox.append(topic, payload) if connected else None
        with self._changed:
            queue = self._fresh if connected else self._waiting
            queue.append(_Queued(topic, payload, ticket))
            while len(self._fresh) > self._fresh_limit:
                self._put_back(self._fresh.popleft())
            self._trim()
            self._changed.notify()

    def close(self, timeout: float = 5.0) -> int:
        """Send what is queued in memory for up to ``timeout`` seconds, say offline, disconnect.

        Returns how many queued messages were lost; what is on disk waits for the next start.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout if self._may_send() else 0.1)
        self._connection.close(timeout)
        self._thread.join(1.0)
        self._settle()
        if self._outbox is not None:
            if len(self._outbox):
                log.info("%d messages wait in the outbox for the next start", len(self._outbox))
            self._outbox.close()
        return sum(1 for queued in [*self._fresh, *self._waiting] if queued.ticket is None)

    def _may_send(self) -> bool:
        """Whether the broker is there, or is being connected to for the first time."""
        return self._connection.connected.is_set() or self._connection.trouble is None

    def _put_back(self, queued: _Queued) -> None:
        """From fresh to waiting; called with the condition held."""
        if queued.ticket is not None and self._outbox is not None:
            self._outbox.give_back(queued.ticket)
            return
        self._waiting.append(queued)
        self._trim()

    def _trim(self) -> None:
        while len(self._waiting) > self._limit:
            self._waiting.popleft()
            self.dropped_memory += 1

    def _run(self) -> None:
        while True:
            self._settle()
            connected = self._connection.connected.wait(0.0 if self._stopping else 0.2)
            self._sync()
            if not connected:
                if self._stopping and (not self._may_send() or not len(self)):
                    return
                with self._changed:
                    while self._fresh:
                        self._put_back(self._fresh.popleft())
                    if self._stopping:
                        self._changed.wait(0.05)
                continue
            queued, fresh = self._next()
            if queued is not None:
                self._send(queued, fresh)
                continue
            with self._changed:
                if self._stopping and not self._fresh and not self._waiting:
                    return
                if not self._fresh and not self._delivered:
                    self._changed.wait(self._pause())

    def _next(self) -> tuple[_Queued | None, bool]:
        """What to send now, and whether it is fresh."""
        waiting = self._next_waiting() if self._may_send_waiting() else None
        with self._changed:
            if waiting is not None:
                self._tokens -= 1
                self._backlog_flight += 1
                return waiting, False
            return (self._fresh.popleft(), True) if self._fresh else (None, False)

    def _next_waiting(self) -> _Queued | None:
        # On the way out the disk keeps its messages for the next start.
        if self._outbox is not None and not self._stopping:
            stored = self._outbox.next()
            if stored is not None:
                return _Queued(*stored)
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def _may_send_waiting(self) -> bool:
        now = self._monotonic()
        elapsed, self._counted_at = now - self._counted_at, now
        self._tokens = min(BURST, self._tokens + elapsed * self._rate)
        if self._stopping:
            return True
        return self._tokens >= 1 and self._backlog_flight < self._backlog_places

    def _pause(self) -> float:
        """How long nothing needs to be looked at, unless something new comes."""
        backlog = bool(self._waiting) or (self._outbox is not None and self._outbox.backlog > 0)
        return 1.0 / self._rate if backlog and not self._stopping else 0.5

    def _send(self, queued: _Queued, fresh: bool) -> None:
        done = partial(self._answered, queued.ticket, fresh)
        try:
            while not self._connection.send(queued.topic, queued.payload, 0.5, done=done):
                self._settle()
                if not self.connected or self._stopping:
                    with self._changed:
                        self._backlog_flight -= 0 if fresh else 1
                        if queued.ticket is None and not fresh:
                            self._waiting.appendleft(queued)
                        else:
                            self._put_back(queued)
                    return
        except RigcanaryError as error:
            self.refused += 1
            log.error("a message was thrown away: %s", error)
            self._answered(queued.ticket, fresh)

    def _answered(self, ticket: Ticket | None, fresh: bool) -> None:
        """In the network thread, which must not wait for a disk."""
        if ticket is not None:
            self._delivered.append(ticket)
        with self._changed:
            self._backlog_flight -= 0 if fresh else 1
            self._changed.notify()

    def _settle(self) -> None:
        """Take what was delivered out of the outbox."""
        while self._outbox is not None:
            try:
                ticket = self._delivered.popleft()
            except IndexError:
                return
            self._outbox.done(ticket)

    def _sync(self) -> None:
        now = self._monotonic()
        if self._outbox is not None and now - self._synced_at >= SYNC_LOOK_SECONDS:
            self._synced_at = now
            self._outbox.sync()
