"""One node's connection to the MQTT broker."""

import logging
import random
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from agents.edge import trouble as why
from agents.settings import MqttSettings
from contract.errors import ConfigError, RigcanaryError

log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 60.0
STABLE_SECONDS = 30.0
"""A connection that held this long ends the back-off. A shorter one does not: two agents with
one client id, which take the connection from each other, must not do so every second."""


class _Sent(NamedTuple):
    """What the acknowledgement of a message gives back and counts."""

    slot: bool
    messages: int
    samples: int
    done: Callable[[], None] | None = None


class Connection:
    """Sends QoS 1 messages, at most ``max_inflight`` of them unacknowledged.

    Says ``online`` (retained) at every connect and leaves ``offline`` as its will. Reconnects for
    ever, after an exponential back-off with full jitter. ``acknowledged`` counts the messages whose
    PUBACK came (status not included), ``acknowledged_telemetry`` those of them with samples, and
    ``acknowledged_samples`` the samples, ``denied`` what the broker said no to (MQTT 5 only: 3.1.1
    has no word for it), ``takeovers`` how often another client seems to have taken the client id.
    """

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        status_topic: str,
        online: Callable[[], bytes],
        offline: Callable[[], bytes],
    ) -> None:
        self._settings = settings
        self._client_id = client_id
        self._status_topic = status_topic
        self._online = online
        self._offline = offline
        self._slots = threading.Semaphore(settings.max_inflight)
        self._flight: dict[int, tuple[_Sent, str]] = {}
        self._early: dict[int, str | None] = {}
        self._said_denied: set[str] = set()
        self._flight_lock = threading.Lock()
        self._connected_at: float | None = None
        self.failures = 0
        self._short = 0
        self.connections = 0
        self.takeovers = 0
        self.denied = 0
        self.trouble: str | None = None
        self.connected = threading.Event()
        self.acknowledged = 0
        self.acknowledged_telemetry = 0
        self.acknowledged_samples = 0
        self._client = self._build()

    def _build(self) -> paho.Client:
        settings = self._settings
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=paho.MQTTv5 if settings.protocol == "5" else paho.MQTTv311,
        )
        username = settings.read_username()
        if username is not None:
            client.username_pw_set(username, settings.read_password())
        if settings.tls:
            try:
                client.tls_set(
                    ca_certs=None if settings.ca_file is None else str(settings.ca_file),
                    certfile=None if settings.cert_file is None else str(settings.cert_file),
                    keyfile=None if settings.key_file is None else str(settings.key_file),
                )
            except (OSError, ssl.SSLError, ValueError) as error:
                raise ConfigError(why.tls_files(settings, error)) from error
        client.max_inflight_messages_set(settings.max_inflight)
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        return client

    def open(self) -> None:
        """Start connecting, in the background."""
        self._prepare_connect()
        try:
            self._client.connect_async(
                self._settings.host, self._settings.port, self._settings.keepalive_seconds
            )
        except ValueError as error:
            raise ConfigError(f"mqtt.host {self._settings.host!r}: {error}") from error
        self._client.loop_start()

    def send(
        self,
        topic: str,
        payload: bytes,
        timeout: float | None = None,
        retain: bool = False,
        samples: int = 0,
        done: Callable[[], None] | None = None,
    ) -> bool:
        """Hand a message over; waits while ``max_inflight`` are unacknowledged.

        Returns False when ``timeout`` seconds passed first; the message is then not taken. What
        was taken is sent again after a reconnect until it is acknowledged (at least once).
        ``samples`` is how many readings it holds, for the counters. ``done`` is called in the
        network thread when the broker has answered for the message; it must not wait.

        Raises:
            RigcanaryError: the client refuses the message itself.
        """
        if not self._slots.acquire(timeout=timeout):
            return False
        try:
            info = self._client.publish(topic, payload, qos=1, retain=retain)
        except ValueError as error:
            self._slots.release()
            raise RigcanaryError(
                f"MQTT cannot carry a message of {len(payload)} bytes: {error}"
            ) from error
        self._track(info.mid, _Sent(True, 0 if retain else 1, samples, done), topic)
        return True

    def drain(self, timeout: float) -> bool:
        """Wait until everything sent is acknowledged, up to ``timeout`` seconds; whether it is."""
        deadline = time.monotonic() + timeout
        taken = 0
        while taken < self._settings.max_inflight:
            if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
                break
            taken += 1
        for _ in range(taken):
            self._slots.release()
        return taken == self._settings.max_inflight

    def close(self, timeout: float = 5.0) -> bool:
        """Send what is in flight, say ``offline`` and disconnect; whether all was acknowledged.

        The clean disconnect keeps the broker from sending the will, hence the ``offline``.
        """
        done = False
        if self.connected.is_set():
            deadline = time.monotonic() + timeout
            left = self.drain(timeout)
            said = self.send(
                self._status_topic,
                self._offline(),
                max(0.1, deadline - time.monotonic()),
                retain=True,
            )
            done = left and said and self.drain(max(0.1, deadline - time.monotonic()))
        self._client.disconnect()
        # paho's loop waits without limit for acknowledgements that a silent broker never sends.
        ending = threading.Thread(target=self._client.loop_stop, daemon=True)
        ending.start()
        ending.join(timeout)
        return done

    def _prepare_connect(self) -> None:
        """Draw the pause before the next connect, and give that connect a fresh will.

        Full jitter under a doubling ceiling. paho doubles its delay without
        jitter; being told a new one before each wait, it waits exactly that.
        """
        ceiling = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(self.failures, 16))
        delay = max(0.05, random.uniform(0, ceiling))
        # paho's annotation says int; it only compares and sleeps, so fractions are fine.
        self._client.reconnect_delay_set(delay, delay)  # type: ignore[arg-type]
        self._client.will_set(self._status_topic, self._offline(), qos=1, retain=True)

    def _say(self, trouble: str | None) -> None:
        """Log a change between trouble and none, once."""
        where = f"{self._settings.host}:{self._settings.port}"
        if trouble is not None and trouble != self.trouble:
            log.warning("MQTT broker %s as %s: %s; trying again", where, self._client_id, trouble)
        elif trouble is None and self.trouble is not None:
            log.warning("MQTT broker %s as %s: connected again", where, self._client_id)
        elif trouble is None:
            log.info("MQTT broker %s as %s: connected", where, self._client_id)
        self.trouble = trouble

    def _on_connect(
        self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            self._say(why.refusal(str(reason)))
            return
        self._say(None)
        self.connections += 1
        self._connected_at = time.monotonic()
        info = client.publish(self._status_topic, self._online(), qos=1, retain=True)
        self._track(info.mid, _Sent(False, 0, 0))
        self.connected.set()

    def _on_connect_fail(self, _client: paho.Client, _data: Any) -> None:
        # paho calls this while it handles the exception, and tells nobody which.
        error = sys.exc_info()[1]
        self.failures += 1
        self._prepare_connect()
        self._say(why.connect_failure(error, self._settings.tls))

    def _on_disconnect(
        self, _client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        self.connected.clear()
        connected_at, self._connected_at = self._connected_at, None
        held = 0.0 if connected_at is None else time.monotonic() - connected_at
        self.failures = 0 if held >= STABLE_SECONDS else self.failures + 1
        self._prepare_connect()
        if not reason.is_failure:
            return
        if connected_at is None:
            # Refused: that is said already. Else it broke before the broker answered.
            if self.trouble is None:
                self._say(why.broken_off(str(reason), self._settings.tls))
            return
        taken = why.is_takeover(str(reason))
        self._short = self._short + 1 if taken or held < STABLE_SECONDS else 0
        self.takeovers += 1 if taken or self._short >= 2 else 0
        self._say(why.lost(str(reason), taken, self._short))

    def _on_publish(
        self, _client: paho.Client, _data: Any, mid: int, reason: Any, _properties: Any
    ) -> None:
        # Called with paho's own lock held: only a lock under which paho is never called is safe.
        denied = str(reason) if reason is not None and reason.is_failure else None
        with self._flight_lock:
            known = self._flight.pop(mid, None)
            if known is None:
                self._early[mid] = denied
        if known is not None:
            self._count(known[0], known[1], denied)

    def _track(self, mid: int, sent: _Sent, topic: str | None = None) -> None:
        topic = topic or self._status_topic
        with self._flight_lock:
            early = mid in self._early
            denied = self._early.pop(mid, None)
            if not early:
                self._flight[mid] = (sent, topic)
        if early:
            # The acknowledgement overtook the return of publish().
            self._count(sent, topic, denied)

    def _count(self, sent: _Sent, topic: str, denied: str | None) -> None:
        with self._flight_lock:
            if denied is None:
                self.acknowledged += sent.messages
                self.acknowledged_telemetry += 1 if sent.samples else 0
                self.acknowledged_samples += sent.samples
            else:
                self.denied += 1
            first = denied is not None and topic not in self._said_denied
            if denied is None:
                self._said_denied.discard(topic)
            elif first:
                self._said_denied.add(topic)
        if first:
            log.error(
                "MQTT broker %s:%d does not take %s (%s): the message is lost; "
                "let this node write there in the broker's ACL, or correct site and node",
                self._settings.host,
                self._settings.port,
                topic,
                denied,
            )
        if sent.slot:
            self._slots.release()
        if sent.done is not None:
            sent.done()
