"""The bridge's inbox: MQTT messages handed from the network thread to the event loop."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from stream.bridge_settings import BridgeSettings
from stream.edge.bridge_metrics import BridgeMetrics
from stream.edge.bridge_packer import Incoming
from stream.edge.mqtt_link import MqttLink

MAX_COLLECT = 500
"""Messages taken at once, so that checking them never holds the event loop for long."""
MIN_WINDOW = 10
STOP_SECONDS = 2.0


class MqttInbox:
    """Messages of one persistent MQTT session, to be collected and then released."""

    def __init__(self, settings: BridgeSettings, metrics: BridgeMetrics) -> None:
        """Prepare the client; nothing is connected yet.

        Raises:
            ConfigError: when a certificate file cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._link = MqttLink(
            settings,
            metrics,
            on_message=self._put,
            on_subscribed=self._subscribed,
            has_room=self._has_room,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[Incoming] = deque()
        self._arrived = asyncio.Event()
        self._waiting = False
        self._count_lock = threading.Lock()
        self._held = 0
        self._held_bytes = 0
        self._quiet_at = 0
        self._window = 0
        self._closed = False
        self.connected = asyncio.Event()
        """Set while the broker has answered the subscription."""

    def start(self) -> None:
        """Start the network thread; call from the event loop."""
        self._loop = asyncio.get_running_loop()
        self._link.start()

    @property
    def held(self) -> int:
        """Messages taken and not yet released."""
        return self._held

    async def collect(self) -> list[Incoming]:
        """The messages that arrived together; an empty list once :meth:`close` was called
        and nothing is left.

        Returns when ``linger_ms`` have passed since the first one, when nothing came for
        ``quiet_ms`` (the broker's window is full, or that was all), or at ``MAX_COLLECT``.
        """
        while not self._inbox:
            if self._closed:
                return []
            self._waiting = True
            if not self._inbox and not self._closed:
                await self._arrived.wait()
            self._arrived.clear()
        linger, quiet = self._settings.linger_ms / 1000, self._settings.quiet_ms / 1000
        waited = time.time() - self._inbox[0].received_ms / 1000
        deadline = time.monotonic() + linger - max(0.0, waited)
        count = len(self._inbox)
        while not self._closed and count < MAX_COLLECT and self._held != self._window:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(left, quiet))
            if len(self._inbox) == count:
                self._learn_window()
                break
            count = len(self._inbox)
        return [self._inbox.popleft() for _ in range(min(len(self._inbox), MAX_COLLECT))]

    def _learn_window(self) -> None:
        """Twice quiet at the same number in hand: that is the broker's in-flight window.

        From then on nothing is waited for at that number, until more are seen.
        """
        held = self._held
        self._window = held if held == self._quiet_at and held >= MIN_WINDOW else 0
        self._quiet_at = held

    def release(self, messages: Sequence[Incoming]) -> None:
        """Acknowledge ``messages``, which Kafka has, in the given order of arrival."""
        self._link.ack(messages)
        with self._count_lock:
            self._held -= len(messages)
            self._held_bytes -= sum(len(m.payload) for m in messages)
        self._metrics.unacked.set(self._held)

    def close(self) -> None:
        """Take no more messages; what comes now stays unacknowledged at the broker."""
        self._closed = True
        self._arrived.set()

    async def stop(self) -> None:
        """Send what is queued, say goodbye (the session stays) and end the thread."""
        self.close()
        await asyncio.to_thread(self._link.stop, STOP_SECONDS)

    def _has_room(self) -> bool:
        s = self._settings
        return self._held < s.max_in_hand and self._held_bytes < s.max_in_hand_bytes

    def _put(self, message: Incoming) -> None:
        if self._closed:
            return
        with self._count_lock:
            self._held += 1
            self._held_bytes += len(message.payload)
            if self._held > self._window:
                self._window = 0
        self._inbox.append(message)
        if self._waiting:
            self._waiting = False
            self._call_soon(self._arrived.set)

    def _subscribed(self, yes: bool) -> None:
        self._call_soon(self.connected.set if yes else self.connected.clear)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: the process is ending
            return
