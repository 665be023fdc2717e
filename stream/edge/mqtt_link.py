"""One persistent MQTT session, served by a network thread of its own.

Everything that touches the connection happens in that thread, acknowledgements included:

- They are sent in the order in which they are given, which has to be that of arrival
  ([MQTT-4.6.0-2]; rumqttd closes the connection otherwise).
- A message id is good on its own connection only. After a reconnect the broker sends what was
  not acknowledged again, so acknowledgements of an older connection are dropped.
- While there is no room, the socket is not read: TCP holds the broker back, pings go on.
"""

import logging
import random
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

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

OK = MQTTErrorCode.MQTT_ERR_SUCCESS
MISC_SECONDS = 0.5
"""How often pings and time-outs are looked after."""
NO_ROOM_SECONDS = 0.02
"""How often a link that does not read looks whether there is room again."""
GOODBYE_SECONDS = 1.0
"""How long the broker may take to close the connection."""
DISCONNECT = b"\xe0\x00"  # MQTT 3.1.1, section 3.14


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


def login(client: mqtt.Client, settings: BridgeSettings) -> None:
    """Give the client the user and the certificates of the settings.

    Raises:
        ConfigError: when a certificate file cannot be used.
    """
    s = settings
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
            raise ConfigError(f"mqtt_ca_file {s.mqtt_ca_file}: cannot use it: {error}") from error


def make_client(settings: BridgeSettings) -> mqtt.Client:
    """An MQTT 3.1.1 client with a persistent session and manual acknowledgements.

    Raises:
        ConfigError: when a certificate file cannot be used.
    """
    s = settings
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=s.client_id,
        clean_session=False,
        protocol=mqtt.MQTTv311,
        manual_ack=True,
        reconnect_on_failure=False,
    )
    login(client, settings)
    # With this set, queued packets wait for loop_write, many acknowledgements for one call.
    client.on_socket_register_write = lambda _client, _userdata, _sock: None
    return client


class MqttLink:
    """Keeps a session connected; callbacks run in the network thread and must be quick."""

    def __init__(
        self,
        settings: BridgeSettings,
        metrics: BridgeMetrics,
        *,
        on_message: Callable[[Incoming], None],
        on_subscribed: Callable[[bool], None],
        has_room: Callable[[], bool],
    ) -> None:
        """``on_subscribed`` is told True at each subscription and False at each loss.

        Raises:
            ConfigError: when a certificate file cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._deliver = on_message
        self._subscribed = on_subscribed
        self._has_room = has_room
        self._filters = subscriptions(settings.share_in_force)
        self._client = make_client(settings)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._wakers: tuple[socket.socket, socket.socket] | None = None
        self._acks: deque[tuple[int, int, int]] = deque()
        self._connection = 0
        self._stopping = threading.Event()
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name="bridge-mqtt", daemon=True)

    def start(self) -> None:
        """Start the network thread."""
        self._wakers = socket.socketpair()
        for end in self._wakers:
            end.setblocking(False)
        self._thread.start()

    def ack(self, messages: Iterable[Incoming]) -> None:
        """Acknowledge messages in the given order; any thread."""
        self._acks.extend((m.connection, m.message_id, m.qos) for m in messages if m.qos)
        self._wake()

    def stop(self, timeout_seconds: float) -> None:
        """Send what is queued, say goodbye (the session stays) and end the thread."""
        if self._wakers is None:
            return
        self._stopping.set()
        self._wake()
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            for end in self._wakers:
                end.close()

    def _wake(self) -> None:
        if self._wakers is None:
            return
        try:
            self._wakers[1].send(b"\0")
        except (BlockingIOError, OSError):  # full: it will wake anyway; closed: it has ended
            return

    def _run(self) -> None:
        host, port = split_address(self._settings.mqtt)
        self._client.connect_async(host, port, self._settings.mqtt_keepalive_seconds)
        attempt = 0
        while not self._stopping.is_set():
            before = self._connection
            try:
                self._client.reconnect()
                self._serve()
                error = "the connection was closed"
            except OSError as failure:
                error = str(failure)
            self._lost()
            if self._stopping.is_set():
                return
            attempt = 0 if self._connection > before else attempt + 1
            if attempt <= 1:
                log.warning("MQTT %s: %s; trying until it answers", self._settings.mqtt, error)
            self._stopping.wait(backoff_seconds(attempt, self._rng))

    def _serve(self) -> None:
        """Serve one connection until it ends."""
        if self._wakers is None:
            return
        client, wake_reader = self._client, self._wakers[0]
        misc_at = 0.0
        while (sock := client.socket()) is not None:
            room = self._has_room()
            buffered = room and isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
            wait = MISC_SECONDS if room else NO_ROOM_SECONDS
            readable, _, _ = select.select(
                [sock, wake_reader] if room else [wake_reader],
                [sock] if client.want_write() else [],
                [],
                0.0 if buffered else wait,
            )
            if wake_reader in readable:
                wake_reader.recv(4096)
            if (buffered or sock in readable) and client.loop_read() != OK:
                return
            self._queue_acks()
            if self._stopping.is_set():
                self._say_goodbye(cast("socket.socket", sock))
                return
            if client.want_write() and client.loop_write() != OK:
                return
            if time.monotonic() >= misc_at:
                misc_at = time.monotonic() + MISC_SECONDS
                if client.loop_misc() != OK:
                    return

    def _say_goodbye(self, sock: socket.socket) -> None:
        """Write what is queued and DISCONNECT, then read on until the broker closes.

        A socket closed with input unread resets the connection, and the broker would throw away
        the acknowledgements that it has not read; paho's ``disconnect`` closes at once.
        """
        deadline = time.monotonic() + GOODBYE_SECONDS
        while self._client.want_write() and time.monotonic() < deadline:
            select.select([], [sock], [], NO_ROOM_SECONDS)
            if self._client.loop_write() != OK:
                return
        try:
            sock.settimeout(GOODBYE_SECONDS)
            sock.sendall(DISCONNECT)
            sock.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and sock.recv(65536):
                pass
        except OSError as error:
            log.debug("MQTT %s: goodbye: %s", self._settings.mqtt, error)
        finally:
            sock.close()

    def _queue_acks(self) -> None:
        while self._acks:
            connection, message_id, qos = self._acks.popleft()
            if connection == self._connection:
                self._client.ack(message_id, qos)

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
        if self._connection and not flags.session_present:
            log.warning("MQTT %s has forgotten this session; what it held is lost", s.mqtt)
        self._connection += 1
        self._metrics.connections.inc()
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
        self._metrics.connected.labels("mqtt").set(1)
        self._subscribed(True)

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
        self._metrics.connected.labels("mqtt").set(0)
        self._subscribed(False)

    def _on_message(
        self, _client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage
    ) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = "(not UTF-8)"
        self._deliver(
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
