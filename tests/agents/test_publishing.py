"""Agent to broker over a real wire: status, will, acknowledgement, outage, bounded queue."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from agents.edge.connection import Connection
from agents.edge.publisher import Publisher
from agents.settings import MqttSettings
from contract.errors import ConfigError

Wait = Callable[..., None]


def make_connection(settings: Any, client_id: str = "rigcanary-lab-rig1") -> Connection:
    return Connection(
        settings,
        client_id,
        "rigcanary/v1/lab/rig1/status",
        online=lambda: b'{"state":"online"}',
        offline=lambda: b'{"state":"offline"}',
    )


@contextlib.contextmanager
def publishing(settings: Any) -> Iterator[Publisher]:
    publisher = Publisher(make_connection(settings), settings.queue_messages)
    publisher.open()
    try:
        yield publisher
    finally:
        publisher.close()


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_status_and_messages_in_order(
    broker: Any, make_recorder: Any, wait: Wait, protocol: str
) -> None:
    recorder = make_recorder("#") if protocol == "3.1.1" else None
    with publishing(broker.settings(protocol)) as publisher:
        for i in range(50):
            publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"%d" % i)
        wait(lambda: publisher.acknowledged == 50)
        if recorder is not None:
            wait(lambda: len(recorder.of("telemetry")) == 50)
            assert recorder.of("telemetry") == list(range(50))
            assert recorder.of("status") == [{"state": "online"}]
    if recorder is not None:
        wait(lambda: len(recorder.of("status")) == 2)
        assert recorder.of("status")[-1] == {"state": "offline"}
        late = make_recorder("rigcanary/v1/lab/rig1/status")
        wait(lambda: late.received)
        assert late.received == [("rigcanary/v1/lab/rig1/status", {"state": "offline"}, True)]


def test_outage_loses_nothing_and_keeps_the_order(
    broker: Any, make_recorder: Any, wait: Wait
) -> None:
    with publishing(broker.settings()) as publisher:
        publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"0")
        wait(lambda: publisher.acknowledged == 1)
        broker.stop()
        wait(lambda: not publisher.connected)
        for i in range(1, 120):
            publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"%d" % i)
        broker.start()
        recorder = make_recorder()
        wait(lambda: publisher.acknowledged == 120, 30)
        wait(lambda: 119 in recorder.of("telemetry"))
        assert publisher.dropped == 0
        # What came before this recorder subscribed is gone with the restarted broker's memory.
        received = recorder.of("telemetry")
        assert received == list(range(received[0], 120))


def test_full_queue_drops_the_oldest_and_counts(
    broker: Any, wait: Wait, make_recorder: Any
) -> None:
    broker.stop()
    with publishing(broker.settings(queue_messages=10)) as publisher:
        for i in range(25):
            publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"%d" % i)
        assert (len(publisher), publisher.dropped) == (10, 15)
        broker.start()
        recorder = make_recorder("#")
        wait(lambda: publisher.acknowledged == 10, 30)
        # What came before this recorder subscribed is not repeated to it; the last one may still
        # be on its way to it when the publisher already has its acknowledgement.
        publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"25")
        wait(lambda: 25 in recorder.of("telemetry"))
        received = recorder.of("telemetry")
        assert received == list(range(26 - len(received), 26))


def test_closing_without_a_broker_does_not_hang(broker: Any) -> None:
    broker.stop()
    publisher = Publisher(make_connection(broker.settings()), 10)
    publisher.open()
    publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"1")
    closing = threading.Thread(target=publisher.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()


AGENT = """
import sys
from agents.edge import service
from agents import run
from agents.settings import AgentSettings, MqttSettings

class Fake:
    name, enumerates = "fake", True
    def read(self, now):
        return [{"device": "GPU-a", "index": 0, "temperature_celsius": 50.0}]
    def close(self):
        pass

run.open_source = lambda name, settings: Fake()
service.serve(AgentSettings(site="lab", node="rig1", sources=("fake",), interval_seconds=0.1,
                            mqtt=MqttSettings(port=int(sys.argv[1]))))
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_offline_is_said_however_the_agent_ends(
    broker: Any, recorder: Any, wait: Wait, end: signal.Signals
) -> None:
    command = [sys.executable, "-c", AGENT, str(broker.port)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        try:
            wait(lambda: len(recorder.of("telemetry")) >= 3)
            process.send_signal(end)
            assert process.wait(20) == (0 if end != signal.SIGKILL else -signal.SIGKILL)
        finally:
            process.kill()
    wait(lambda: [s["state"] for s in recorder.of("status")] == ["online", "offline"])
    boots = {body["boot_id"] for _, body, _ in recorder.received}
    assert len(boots) == 1
    messages = recorder.of("telemetry")
    assert [m["seq"] for m in messages] == list(range(len(messages)))
    assert messages[0]["devices"][0]["temperature_rate_celsius_per_second"] is None
    assert messages[-1]["devices"][0]["temperature_rate_celsius_per_second"] == 0.0


def test_simulated_rigs_share_a_clock_and_end_by_themselves(
    broker: Any, recorder: Any, wait: Wait
) -> None:
    start = 1_767_225_600
    command = [sys.executable, "-m", "rigcanary", "agent", "--source", "sim", "--site", "demo"]
    command += ["--mqtt", f"127.0.0.1:{broker.port}", "--speed", "100", "--until", "100"]
    command += ["--sim-start", "2026-01-01T00:00:00Z"]
    rigs = [
        subprocess.Popen([*command, "--node", node], cwd=Path(__file__).parents[2])
        for node in ("rig001", "rig002")
    ]
    try:
        assert [rig.wait(60) for rig in rigs] == [0, 0]
    finally:
        for rig in rigs:
            rig.kill()
    wait(lambda: [s["state"] for s in recorder.of("status")].count("offline") == 2)
    for node in ("rig001", "rig002"):
        times = [m["ts"] - start for m in recorder.of("telemetry") if m["node"] == node]
        assert times == sorted(set(times))
        assert set(times) <= set(range(0, 100, 5))
        assert times


def test_a_second_broker_understands_the_same(mosquitto: Any, wait: Wait) -> None:
    for protocol in ("3.1.1", "5"):
        settings = MqttSettings(port=mosquitto.port, protocol=protocol)
        with publishing(settings) as publisher:
            for i in range(200):
                publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"%d" % i)
            wait(lambda publisher=publisher: publisher.acknowledged == 200)


def test_wrong_tls_files_are_one_clear_error(tmp_path: Path) -> None:
    settings = MqttSettings(tls=True, ca_file=tmp_path / "absent.pem")
    with pytest.raises(ConfigError, match="ca_file"):
        make_connection(settings)


def test_a_password_comes_from_a_file_and_stays_out_of_sight(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    settings = MqttSettings(username="rig1", password_file=secret)
    assert settings.read_password() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(MqttSettings(username="rig1", password=SecretStr("hunter2")))
    with pytest.raises(ConfigError, match="absent"):
        MqttSettings(password_file=tmp_path / "absent").read_password()
