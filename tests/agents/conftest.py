"""Fixtures of the agent's tests: a real MQTT broker, a client that records, fakes."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import paho.mqtt.client as paho
import pytest
from iotcore import Broker
from paho.mqtt.enums import CallbackAPIVersion

from agents.settings import MqttSettings

BROKER_CONFIG = """
id = 0
[router]
id = 0
max_connections = 100
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{v4}"
next_connection_delay_ms = 1
    [v4.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = 1048576
    max_inflight_count = 100
    dynamic_filters = true
[v5.1]
name = "v5-1"
listen = "127.0.0.1:{v5}"
next_connection_delay_ms = 1
    [v5.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = 1048576
    max_inflight_count = 100
    dynamic_filters = true
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait until ``condition`` holds; the limit only ends a test that has failed already."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


class BrokerHandle:
    """An iotcore broker on two free ports (3.1.1 and 5) that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.port, self.port_v5 = free_port(), free_port()
        self._config = folder / "broker.toml"
        self._config.write_text(BROKER_CONFIG.format(v4=self.port, v5=self.port_v5))
        self._broker: Broker | None = None

    def start(self) -> None:
        self._broker = Broker(config_path=str(self._config)).start()

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    def settings(self, protocol: Any = "3.1.1", **more: Any) -> MqttSettings:
        port = self.port if protocol == "3.1.1" else self.port_v5
        return MqttSettings(host="127.0.0.1", port=port, protocol=protocol, **more)


class Recorder:
    """A subscriber that keeps (topic, decoded body, retained) of all it gets."""

    def __init__(self, port: int, topic: str = "rigcanary/v1/#") -> None:
        self.received: list[tuple[str, Any, bool]] = []
        self._ready = False
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="")
        self._client.on_connect = lambda client, *_: client.subscribe(topic, qos=1)
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        wait_for(lambda: self._ready)

    def _on_subscribe(self, *_: Any) -> None:
        self._ready = True

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.received.append((message.topic, orjson.loads(message.payload), message.retain))

    def of(self, kind: str) -> list[Any]:
        return [body for topic, body, _ in self.received if topic.endswith("/" + kind)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent of a test, nor a process it starts, finds what another left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerHandle]:
    handle = BrokerHandle(tmp_path)
    handle.start()
    yield handle
    handle.stop()


@pytest.fixture
def recorder(broker: BrokerHandle) -> Iterator[Recorder]:
    client = Recorder(broker.port)
    yield client
    client.close()


@pytest.fixture
def wait() -> Callable[..., None]:
    return wait_for


@pytest.fixture
def make_recorder(broker: BrokerHandle) -> Iterator[Callable[..., Recorder]]:
    clients: list[Recorder] = []

    def make(topic: str = "rigcanary/v1/#") -> Recorder:
        clients.append(Recorder(broker.port, topic))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
