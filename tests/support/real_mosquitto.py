"""A real Mosquitto that a test stops and starts, and a client that records what it passes on."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import orjson
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion


class Mosquitto:
    """A mosquitto on a free port, with lines of its own in the configuration."""

    def __init__(self, folder: Path, port: int, lines: str = "allow_anonymous true\n") -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        if program is None:
            pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
        self.port = port
        self.log = folder / "mosquitto.log"
        self._config = folder / "mosquitto.conf"
        # It drops its rights where it starts as root, and could not read what the test made.
        self._config.write_text(
            f"user root\nlistener {port} 127.0.0.1\nmax_queued_messages 100000\n"
            f"persistence true\npersistence_location {folder}/\n{lines}"
        )
        self._command = [program, "-v", "-c", str(self._config)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        for _ in range(500):
            if b"running" in self.log.read_bytes().split(b"mosquitto version")[-1]:
                return
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        """End it; like a broker in service it keeps sessions and what it has confirmed."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None


class Reader:
    """A persistent session that records what arrives, through restarts of the broker."""

    def __init__(self, port: int, user: str | None = None) -> None:
        self.received: list[tuple[str, Any]] = []
        self.subscribed = 0
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id="reader", clean_session=False
        )
        if user is not None:
            self._client.username_pw_set(user, user)
        self._client.on_connect = lambda client, *_: client.subscribe("rigcanary/v1/#", qos=1)
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.reconnect_delay_set(0.05, 0.05)  # type: ignore[arg-type]
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_subscribe(self, *_: Any) -> None:
        self.subscribed += 1

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.received.append((message.topic, orjson.loads(message.payload)))

    def of(self, kind: str) -> list[Any]:
        return [body for topic, body in list(self.received) if topic.endswith("/" + kind)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
