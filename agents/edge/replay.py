"""``rigcanary replay``: a fleet data set out over MQTT, as its rigs would have sent it.

A rig has a connection of its own, with its own client id, will and status, up to
``MAX_CONNECTIONS`` of them: each costs this process a thread and file descriptors, and a broker
a session. The rigs of a larger fleet share them; their status is still said, but only the first
rig of a connection has a will, so that a killed replay leaves the others ``online``.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from agents.edge.connection import Connection
from agents.fleet.files import sensor_columns, telemetry_files
from agents.fleet.ordered import Survey, ordered_tables, survey
from agents.fleet.ticks import NodeName, RecordedTick, ticks
from agents.messages import Envelope, encode, new_boot_id
from agents.settings import MqttSettings
from contract.errors import RigcanaryError
from contract.topics import MqttKind, MqttTopic

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 128
CONNECT_SECONDS: Final = 20.0
STALL_SECONDS: Final = 120.0
"""A broker that acknowledges nothing for this long ends the replay."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """``speed`` is data seconds a wall second, None for as fast as the broker acknowledges.

    ``site`` replaces the data set's; ``now`` shifts the time stamps so that the last row ends at
    the present; a pause in the data takes at most ``max_pause_seconds`` of the wall's time.
    """

    mqtt: MqttSettings
    speed: float | None
    now: bool = False
    site: str | None = None
    max_pause_seconds: float | None = None
    default_site: str = "replay"


@dataclass(slots=True)
class Replayed:
    """What was sent and acknowledged. A sample is a row of the data set."""

    nodes: int
    rows: int
    messages_sent: int = 0
    messages_acknowledged: int = 0
    samples_sent: int = 0
    samples_acknowledged: int = 0
    events_sent: int = 0
    first_ts: float = 0.0
    last_ts: float = 0.0
    seconds: float = 0.0
    complete: bool = False


class _Rig:
    """One node of the data set as it speaks to the broker."""

    def __init__(self, name: NodeName, site: str, first_ts: float) -> None:
        self.site, self.node = site, name[1]
        self.envelope = Envelope(self.site, self.node, new_boot_id())
        self.last_ts = first_ts
        self.connection: Connection | None = None
        self.owner = False
        self.said_online = False

    def topic(self, kind: MqttKind) -> str:
        return str(MqttTopic(self.site, self.node, kind))

    def status(self, state: Literal["online", "offline"]) -> bytes:
        return self.envelope.status(state, self.last_ts)


class Replay:
    """One replay of ``dataset``; each has a new boot id for every node.

    Raises:
        ConfigError: the data set cannot be used; the message names the file and the column.
    """

    def __init__(
        self,
        dataset: Path,
        options: ReplayOptions,
        stop: threading.Event | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._stop = stop or threading.Event()
        self._files = telemetry_files(dataset)
        self._sensors = sensor_columns(self._files)
        self._survey: Survey = survey(self._files)
        found = self._survey
        self._shift = wall() - found.last_ms / 1000 if options.now else 0.0
        if found.last_ms / 1000 + self._shift > wall() + 300:
            log.warning(
                "the data set ends in the future; receivers refuse time stamps more than five "
                "minutes ahead (--now shifts them)"
            )
        first_ts = found.first_ms / 1000 + self._shift
        self._rigs = {
            name: _Rig(name, options.site or name[0] or options.default_site, first_ts)
            for name in found.nodes
        }
        self._connections: list[Connection] = []
        self.result = Replayed(
            nodes=len(self._rigs),
            rows=found.rows,
            first_ts=first_ts,
            last_ts=found.last_ms / 1000 + self._shift,
        )

    def run(self) -> Replayed:
        """Send everything, or until ``stop`` is set; waits for the last acknowledgement.

        Raises:
            RigcanaryError: the broker cannot be reached, or acknowledges nothing any more.
        """
        begun = time.monotonic()
        try:
            self._connect()
            self._send_all(begun)
        finally:
            self._close()
            self.result.seconds = round(time.monotonic() - begun, 3)
        self.result.complete = self.result.samples_acknowledged == self._survey.rows
        return self.result

    def _connect(self) -> None:
        rigs = list(self._rigs.values())
        for rig in rigs[:MAX_CONNECTIONS]:
            rig.owner = rig.said_online = True
            rig.connection = Connection(
                self._options.mqtt,
                client_id=f"rigcanary-{rig.site}-{rig.node}",
                status_topic=rig.topic("status"),
                online=partial(rig.status, "online"),
                offline=partial(rig.status, "offline"),
            )
            self._connections.append(rig.connection)
        for i, rig in enumerate(rigs[MAX_CONNECTIONS:]):
            rig.connection = self._connections[i % MAX_CONNECTIONS]
        for connection in self._connections:
            connection.open()
        deadline = time.monotonic() + CONNECT_SECONDS
        for connection in self._connections:
            if not connection.connected.wait(max(0.0, deadline - time.monotonic())):
                mqtt = self._options.mqtt
                raise RigcanaryError(
                    f"no MQTT broker answers at {mqtt.host}:{mqtt.port} "
                    f"({connection.trouble or 'no connection'}); start it, or correct --mqtt"
                )

    def _send_all(self, begun: float) -> None:
        tables = ordered_tables(self._files, self._sensors, self._survey)
        clock = _Pace(self._options.speed, self._options.max_pause_seconds)
        for tick in ticks(tables, self._sensors):
            delay = clock.delay(tick.ts, time.monotonic())
            if self._stop.wait(delay) if delay > 0 else self._stop.is_set():
                return
            self._send(tick)

    def _send(self, tick: RecordedTick) -> None:
        rig = self._rigs[tick.node]
        ts = rig.last_ts = tick.ts + self._shift
        if not rig.said_online:
            rig.said_online = True
            self._deliver(rig, "status", rig.status("online"), retain=True)
        for device, type_, text in tick.events:
            event = rig.envelope.event(ts, device, type_, text)
            self._deliver(rig, "events", encode(event))
            self.result.events_sent += 1
        message = rig.envelope.telemetry(ts, tick.interval_seconds, tick.devices)
        self._deliver(rig, "telemetry", encode(message), samples=len(tick.devices))
        self.result.messages_sent += 1
        self.result.samples_sent += len(tick.devices)

    def _deliver(
        self, rig: _Rig, kind: MqttKind, payload: bytes, retain: bool = False, samples: int = 0
    ) -> None:
        """Wait for a free place among the unacknowledged: nothing is ever dropped here."""
        connection = rig.connection
        assert connection is not None
        if not connection.send(rig.topic(kind), payload, STALL_SECONDS, retain, samples):
            mqtt = self._options.mqtt
            raise RigcanaryError(
                f"the MQTT broker {mqtt.host}:{mqtt.port} has acknowledged nothing for "
                f"{STALL_SECONDS:.0f} s ({connection.trouble or 'it is connected'}); "
                f"{self.result.samples_acknowledged} samples had arrived"
            )

    def _close(self) -> None:
        for rig in self._rigs.values():
            connection = rig.connection
            if connection is None or rig.owner or not rig.said_online:
                continue
            if connection.connected.is_set():
                connection.send(rig.topic("status"), rig.status("offline"), 5.0, retain=True)
        # Together: one that has lost its broker takes a second to end.
        with ThreadPoolExecutor(max_workers=32) as pool:
            list(pool.map(lambda connection: connection.close(timeout=15.0), self._connections))
        for connection in self._connections:
            self.result.messages_acknowledged += connection.acknowledged_telemetry
            self.result.samples_acknowledged += connection.acknowledged_samples


class _Pace:
    """When a time stamp's turn comes, ``speed`` data seconds a wall second."""

    def __init__(self, speed: float | None, max_pause_seconds: float | None) -> None:
        self._speed = speed
        self._max_pause = float("inf") if max_pause_seconds is None else max_pause_seconds
        self._last_ts: float | None = None
        self._due = 0.0

    def delay(self, ts: float, now: float) -> float:
        """Wall seconds to wait at ``now`` (a monotonic clock) before sending ``ts``."""
        if self._speed is None:
            return 0.0
        if self._last_ts is None:
            self._due = now
        else:
            self._due += min((ts - self._last_ts) / self._speed, self._max_pause)
        self._last_ts = ts
        return self._due - now
