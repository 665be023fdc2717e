"""The bridge's MQTT side: a network thread that fills an inbox, acknowledgements in order.

MQTT wants acknowledgements in the order of arrival ([MQTT-4.6.0-2]); rumqttd closes the
connection when they are not. A message id is good on its own connection only: after a
reconnect the broker sends what was not acknowledged again, so older ones are forgotten.
"""

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from contract.errors import ConfigError
from contract.topics import MQTT_KINDS, MQTT_ROOT
from stream.bridge_settings import BridgeSettings, split_address
from stream.edge.backoff import backoff_seconds
from stream.edge.bridge_metrics import BridgeMetrics
from stream.edge.bridge_packer import Incoming

log = logging.getLogger("rigcanary.bridge")

MAX_COLLECT = 500
"""Messages taken at once, so that checking them never holds the event loop for long."""


def subscriptions(share: str) -> list[tuple[str, int]]:
    """Topic filters with their QoS; an empty ``share`` means ordinary subscriptions.

    One group a filter, since rumqttd mixes up filters of one group and loses messages. Status
    is never shared: shared subscriptions get no retained messages, and a status that comes
    twice does no harm.
    """
    wanted: list[tuple[str, int]] = []
    for kind in MQTT_KINDS:
        group = f"$share/{share}-{kind}/" if share and kind != "status" else ""
        wanted.append((f"{group}{MQTT_ROOT}/+/+/{kind}", 1))
    return wanted


class MqttInbox:
    """Messages of one persistent MQTT session, to be collected and then acknowledged."""

    def __init__(self, settings: BridgeSettings, metrics: BridgeMetrics) -> None:
        """Prepare the client; nothing is connected yet.

        Raises:
            ConfigError: when a certificate file cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._filters = subscriptions(settings.share_in_force)
        self._client = self._make_client()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="bridge-mqtt", daemon=True)
        self._inbox: deque[Incoming] = deque()
        self._arrived = asyncio.Event()
        self._waiting = False
        self._room = threading.Condition()
        self._held = 0
        self._held_bytes = 0
        self._connection = 0  # odd while connected; a new number at each connect and loss
        self._accepted = 0
        self._ack_lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._rng = random.Random()
        self.connected = asyncio.Event()

    def _make_client(self) -> mqtt.Client:
        s = self._settings
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=s.client_id,
            clean_session=False,
            protocol=mqtt.MQTTv311,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        if s.mqtt_username is not None:
            password = s.mqtt_password.get_secret_value() if s.mqtt_password else None
            client.username_pw_set(s.mqtt_username, password)
        if s.mqtt_ca_file is not None:
            try:
                client.tls_set(
                    ca_certs=str(s.mqtt_ca_file),
                    certfile=str(s.mqtt_cert_file) if s.mqtt_cert_file else None,
                    keyfile=str(s.mqtt_key_file) if s.mqtt_key_file else None,
                )
            except OSError as error:  # ssl.SSLError is one
                raise ConfigError(
                    f"mqtt_ca_file {s.mqtt_ca_file}: cannot use it: {error}"
                ) from error
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        # With this set, a packet queued by another thread is left to the network thread.
        client.on_socket_register_write = lambda _client, _userdata, _sock: None
        return client

    # -- the event loop's side ------------------------------------------------------------

    def start(self) -> None:
        """Start the network thread; call from the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

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
        while not self._closed and count < MAX_COLLECT:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(left, quiet))
            if len(self._inbox) == count:
                break
            count = len(self._inbox)
        return [self._inbox.popleft() for _ in range(min(len(self._inbox), MAX_COLLECT))]

    def release(self, messages: Iterable[Incoming]) -> None:
        """Acknowledge ``messages``, which Kafka has, in the given order of arrival."""
        count = size = 0
        with self._ack_lock:
            for message in messages:
                count += 1
                size += len(message.payload)
                if message.qos and message.connection == self._connection:
                    self._client.ack(message.message_id, message.qos)
        with self._room:
            self._held -= count
            self._held_bytes -= size
            self._room.notify_all()
        self._metrics.unacked.set(self._held)

    def close(self) -> None:
        """Take no more messages; what comes now stays unacknowledged at the broker."""
        self._closed = True
        self._arrived.set()
        with self._room:
            self._room.notify_all()

    async def stop(self) -> None:
        """Send what is queued, say goodbye (the session stays) and end the thread."""
        self._closed = True
        self._stopping.set()
        self._client.disconnect()
        with self._room:
            self._room.notify_all()
        await asyncio.to_thread(self._thread.join, 1.5)

    # -- the network thread's side ----------------------------------------------------------

    def _run(self) -> None:
        host, port = split_address(self._settings.mqtt)
        self._client.connect_async(host, port, self._settings.mqtt_keepalive_seconds)
        attempt = 0
        while not self._stopping.is_set():
            accepted = self._accepted
            try:
                self._client.reconnect()
                while self._client.loop(timeout=1.0) == MQTTErrorCode.MQTT_ERR_SUCCESS:
                    pass
                error = "the connection was closed"
            except OSError as failure:
                error = str(failure)
            if self._stopping.is_set():
                return
            self._lost()
            attempt = 0 if self._accepted > accepted else attempt + 1
            if attempt <= 1:
                log.warning("MQTT %s: %s; trying until it answers", self._settings.mqtt, error)
            self._stopping.wait(backoff_seconds(attempt, self._rng))

    def _on_connect(
        self,
        client: mqtt.Client,
        _userdata: object,
        flags: mqtt.ConnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        s = self._settings
        if reason.is_failure:
            log.error("MQTT %s refuses %s: %s", s.mqtt, s.client_id, reason)
            return
        if self._accepted and not flags.session_present:
            log.warning("MQTT %s has forgotten this session; what it held is lost", s.mqtt)
        self._accepted += 1
        with self._ack_lock:
            self._connection += 1
        self._metrics.connections.inc()
        self._metrics.connected.labels("mqtt").set(1)
        client.subscribe(self._filters)
        log.info("MQTT %s: connected as %s", s.mqtt, s.client_id)

    def _on_subscribe(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _mid: int,
        reasons: list[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        for (name, _), reason in zip(self._filters, reasons, strict=False):
            if reason.is_failure:
                log.error("MQTT refuses the subscription %s: %s", name, reason)
        self._call_soon(self.connected.set)

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _flags: mqtt.DisconnectFlags,
        _reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self._lost()

    def _lost(self) -> None:
        with self._ack_lock:
            self._connection += self._connection % 2
        self._metrics.connected.labels("mqtt").set(0)
        self._call_soon(self.connected.clear)

    def _on_message(
        self, _client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage
    ) -> None:
        if self._closed:
            return
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = "(not UTF-8)"
        size = len(message.payload)
        if not self._has_room(size) and not self._wait_for_room(message.qos, size):
            return
        with self._room:
            self._held += 1
            self._held_bytes += size
        self._inbox.append(
            Incoming(
                topic,
                bytes(message.payload),
                time.time_ns() // 1_000_000,
                message.mid,
                message.qos,
                message.retain,
                self._connection,
            )
        )
        if self._waiting:
            self._waiting = False
            self._call_soon(self._arrived.set)

    def _has_room(self, size: int) -> bool:
        s = self._settings
        return self._held < s.max_in_hand and self._held_bytes + size <= s.max_in_hand_bytes

    def _wait_for_room(self, qos: int, size: int) -> bool:
        # Only a broker without an in-flight window gets here. Not reading from the socket is
        # the back-pressure; QoS 0 promises nothing and is dropped.
        if qos == 0:
            self._metrics.dropped.inc()
            return False
        with self._room:
            while not self._has_room(size) and self._held and not self._closed:
                self._room.wait(1.0)
        return not self._closed

    def _call_soon(self, callback: Callable[[], object]) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop was closed in between: the process is ending
            return
