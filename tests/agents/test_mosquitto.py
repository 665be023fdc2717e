"""Real Mosquitto: outage, kill, TLS, ACL, two agents with one name."""

import contextlib
import logging
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_mosquitto import Mosquitto, Reader

from agents.edge import connection as connection_module
from agents.edge import trouble as why
from agents.edge.connection import Connection
from agents.edge.outbox import Outbox
from agents.edge.publisher import Publisher
from agents.settings import MqttSettings
from contract.errors import ConfigError

ROOT = Path(__file__).parents[2]
DEPLOYED = ROOT / "deploy" / "mosquitto"
Wait = Callable[..., None]

AGENT = """
import logging, sys
from pathlib import Path
from agents.edge import service
from agents import run
from agents.settings import AgentSettings, MqttSettings

class Fake:
    name, enumerates = "fake", True
    reads = 0
    def read(self, now):
        # Whoever is asked for a reading has had the one before accepted.
        print(self.reads, flush=True)
        self.reads += 1
        return [{"device": "GPU-a", "index": 0, "temperature_celsius": 50.0}]
    def close(self):
        pass

logging.basicConfig(level=logging.INFO)
run.open_source = lambda name, settings: Fake()
service.serve(AgentSettings(site="lab", node="rig1", sources=("fake",), interval_seconds=0.1,
                            state=Path(sys.argv[2]), mqtt=MqttSettings(port=int(sys.argv[1]))))
"""


@pytest.fixture
def make_broker(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., Mosquitto]]:
    brokers = []

    def make(lines: str = "allow_anonymous true\n") -> Mosquitto:
        brokers.append(Mosquitto(tmp_path, free_port(), lines))
        brokers[-1].start()
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.stop()


@pytest.fixture
def read(wait: Wait) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(port: int, user: str | None = None) -> Reader:
        reader = Reader(port, user)
        readers.append(reader)
        wait(lambda: reader.subscribed)
        return reader

    yield make
    for reader in readers:
        reader.close()


@contextlib.contextmanager
def publishing(
    settings: MqttSettings, folder: Path | None = None, node: str = "rig1"
) -> Iterator[Publisher]:
    connection = Connection(
        settings,
        f"rigcanary-lab-{node}",
        f"rigcanary/v1/lab/{node}/status",
        online=lambda: b'{"state":"online"}',
        offline=lambda: b'{"state":"offline"}',
    )
    outbox = None if folder is None else Outbox(folder, 1 << 20, 3600.0)
    publisher = Publisher(connection, settings.queue_messages, outbox, settings.max_inflight)
    publisher.open()
    try:
        yield publisher
    finally:
        publisher.close()


@contextlib.contextmanager
def agent(port: int, state: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(port), str(state)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ticks_until(process: subprocess.Popen[str], count: int) -> int:
    """Read the agent's ticks up to ``count``; the number of readings it had accepted by then."""
    assert process.stdout is not None
    while (tick := int(process.stdout.readline())) < count:
        pass
    return tick


def boots(messages: list[Any]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for message in messages:
        out.setdefault(message["boot_id"], []).append(message["seq"])
    return out


@pytest.fixture(autouse=True)
def _short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_DELAY_SECONDS", 1.0)


def test_an_outage_at_mosquitto_loses_nothing(
    make_broker: Any, read: Any, tmp_path: Path, wait: Wait
) -> None:
    broker = make_broker()
    reader = read(broker.port)
    topic = "rigcanary/v1/lab/rig1/telemetry"
    with publishing(MqttSettings(port=broker.port), tmp_path / "outbox") as publisher:
        publisher.publish(topic, b"0")
        wait(lambda: reader.of("telemetry") == [0])
        broker.stop()
        wait(lambda: not publisher.connected)
        # Ten minutes at 5 s.
        for i in range(1, 121):
            publisher.publish(topic, b"%d" % i)
        assert len(publisher) == 0, "an outage waits on disk, not in memory"
        broker.start()
        wait(lambda: reader.subscribed == 2)
        wait(lambda: publisher.connected)
        publisher.publish(topic, b"121")
        wait(lambda: len(set(reader.of("telemetry"))) == 122, 60)
        # In order; what the broker had not acknowledged when it went may come twice.
        first = dict.fromkeys(i for i in reader.of("telemetry") if i != 121)
        assert list(first) == list(range(121))
        assert publisher.dropped == 0
    # Delivered and acknowledged: nothing is kept.
    assert len(Outbox(tmp_path / "outbox", 1 << 20, 3600.0)) == 0


def test_a_fresh_message_does_not_wait_for_the_backlog(
    make_broker: Any, read: Any, tmp_path: Path, wait: Wait
) -> None:
    broker = make_broker()
    reader = read(broker.port)
    topic = "rigcanary/v1/lab/rig1/telemetry"
    outbox = Outbox(tmp_path / "outbox", 1 << 20, 3600.0)
    for i in range(500):
        outbox.store(topic, b"%d" % i)
    outbox.close()
    with publishing(MqttSettings(port=broker.port), tmp_path / "outbox") as publisher:
        wait(lambda: len(reader.of("telemetry")) >= 5)
        publisher.publish(topic, b"1000")
        wait(lambda: 1000 in reader.of("telemetry"))
        assert 499 not in reader.of("telemetry")
        wait(lambda: len(reader.of("telemetry")) == 501, 60)
        assert [i for i in reader.of("telemetry") if i != 1000] == list(range(500))


def test_an_agent_killed_in_an_outage_loses_nothing_it_had_accepted(
    make_broker: Any, read: Any, tmp_path: Path, wait: Wait
) -> None:
    broker = make_broker()
    reader = read(broker.port)
    with agent(broker.port, tmp_path / "state") as process:
        wait(lambda: len(reader.of("telemetry")) >= 3)
        broker.stop()
        accepted = ticks_until(process, 30)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    broker.start()
    wait(lambda: reader.subscribed == 2)
    with agent(broker.port, tmp_path / "state") as process:
        wait(lambda: len(boots(reader.of("telemetry"))) == 2)
        first = reader.of("telemetry")[0]["boot_id"]
        wait(lambda: set(range(accepted)) <= set(boots(reader.of("telemetry"))[first]), 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    messages = reader.of("telemetry")
    assert len({m["ts"] for m in messages}) >= accepted, "sample times survive"


def test_the_will_is_said_when_an_agent_dies(
    make_broker: Any, read: Any, tmp_path: Path, wait: Wait
) -> None:
    broker = make_broker()
    reader = read(broker.port)
    with agent(broker.port, tmp_path / "state") as process:
        wait(lambda: len(reader.of("telemetry")) >= 2)
        process.send_signal(signal.SIGKILL)
    wait(lambda: [s["state"] for s in reader.of("status")] == ["online", "offline"])


@pytest.fixture
def deployed(make_broker: Any, tmp_path: Path) -> Mosquitto:
    """Mosquitto with the ACL of ``deploy/`` and users whose password is their name."""
    passwords = tmp_path / "passwords"
    passwords.write_text("".join(f"{u}:{u}\n" for u in ("rig1", "rig2", "rigcanary-bridge")))
    subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True, capture_output=True)
    acl = tmp_path / "acl"
    shutil.copy(DEPLOYED / "acl", acl)
    for file in (passwords, acl):
        file.chmod(0o600)
    lines = f"allow_anonymous false\npassword_file {passwords}\nacl_file {acl}\n"
    broker: Mosquitto = make_broker(lines)
    return broker


def user(name: str, port: int, folder: Path, protocol: str = "5") -> MqttSettings:
    (folder / "user").write_text(f"{name}\n")
    (folder / "password").write_text(f"{name}\n")
    return MqttSettings(
        port=port,
        username_file=folder / "user",
        password_file=folder / "password",
        protocol="5" if protocol == "5" else "3.1.1",
    )


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_node_may_write_its_own_topics(
    deployed: Mosquitto, read: Any, tmp_path: Path, wait: Wait, protocol: str
) -> None:
    reader = read(deployed.port, "rigcanary-bridge")
    with publishing(user("rig1", deployed.port, tmp_path, protocol)) as publisher:
        for kind in ("telemetry", "events"):
            publisher.publish(f"rigcanary/v1/lab/rig1/{kind}", b"1")
        wait(lambda: reader.of("telemetry") == [1] and reader.of("events") == [1])
    wait(lambda: [s["state"] for s in reader.of("status")] == ["online", "offline"])


def test_what_the_acl_denies_is_counted_and_said_once(
    deployed: Mosquitto, read: Any, tmp_path: Path, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    reader = read(deployed.port, "rigcanary-bridge")
    settings = user("rig1", deployed.port, tmp_path)
    with publishing(settings, tmp_path / "outbox") as publisher:
        for _ in range(3):
            publisher.publish("rigcanary/v1/lab/rig2/telemetry", b"1")
        publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"2")
        wait(lambda: publisher.denied == 3)
        wait(lambda: reader.of("telemetry") == [2])
    said = [r.message for r in caplog.records if "does not take" in r.message]
    assert len(said) == 1
    assert "rigcanary/v1/lab/rig2/telemetry" in said[0]
    assert "ACL" in said[0]
    assert len(Outbox(tmp_path / "outbox", 1 << 20, 3600.0)) == 0


def test_a_node_with_anothers_name_is_told_as_soon_as_it_connects(
    deployed: Mosquitto, read: Any, tmp_path: Path, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    reader = read(deployed.port, "rigcanary-bridge")
    with publishing(user("rig1", deployed.port, tmp_path), node="rig2"):
        wait(lambda: "rigcanary/v1/lab/rig2/status (Not authorized)" in caplog.text)
    # MQTT 3.1.1 has no word for it: the broker confirms and drops, which the docs say.
    with publishing(user("rig1", deployed.port, tmp_path, "3.1.1"), node="rig2") as publisher:
        publisher.publish("rigcanary/v1/lab/rig2/telemetry", b"1")
        wait(lambda: publisher.acknowledged == 1)
        assert publisher.denied == 0
    assert reader.received == []


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_wrong_password_is_one_line_and_backed_off(
    deployed: Mosquitto, tmp_path: Path, wait: Wait, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = user("rig1", deployed.port, tmp_path, protocol)
    (tmp_path / "password").write_text("hunter2")
    with publishing(settings) as publisher:
        wait(lambda: publisher.failures >= 3)
        assert not publisher.connected
    assert sum("mqtt.username" in r.message for r in caplog.records) == 1
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert "hunter2" not in caplog.text


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A CA of our own, a broker's and a rig's certificate, and a CA that signed neither."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed (apt-get install openssl)")
    folder = tmp_path / "certs"
    folder.mkdir()

    def call(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "other"):
        call("req", "-x509", *key, "-days", "2", "-subj", f"/CN=test {ca}",
             "-keyout", f"{ca}.key", "-out", f"{ca}.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("broker", "rig1"):
        call("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        call("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey",
             "ca.key", "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return folder


def tls_lines(certs: Path, *more: str) -> str:
    lines = [
        f"cafile {certs}/ca.pem",
        f"certfile {certs}/broker.pem",
        f"keyfile {certs}/broker.key",
    ]
    return "\n".join([*lines, *more, ""])


def test_tls_with_a_client_certificate_whose_name_is_the_user(
    make_broker: Any, certificates: Path, tmp_path: Path, wait: Wait
) -> None:
    acl = tmp_path / "acl"
    shutil.copy(DEPLOYED / "acl", acl)
    acl.chmod(0o600)
    broker = make_broker(
        tls_lines(
            certificates, "require_certificate true", "use_identity_as_username true",
            f"acl_file {acl}", "allow_anonymous false",
        )
    )  # fmt: skip
    settings = MqttSettings(
        port=broker.port, tls=True, protocol="5", ca_file=certificates / "ca.pem",
        cert_file=certificates / "rig1.pem", key_file=certificates / "rig1.key",
    )  # fmt: skip
    with publishing(settings) as publisher:
        publisher.publish("rigcanary/v1/lab/rig1/telemetry", b"1")
        wait(lambda: publisher.acknowledged == 1)


# paho leaves a socket whose handshake failed to the garbage collector, which says so.
half_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@half_open
@pytest.mark.parametrize(
    ("ca", "host", "said"),
    [
        ("other.pem", "127.0.0.1", "check mqtt.ca_file"),
        ("ca.pem", "localhost", "check mqtt.ca_file and mqtt.host"),
    ],
)
def test_a_broker_that_is_not_the_right_one_is_one_line(
    make_broker: Any, certificates: Path, wait: Wait, caplog: pytest.LogCaptureFixture,
    ca: str, host: str, said: str,
) -> None:  # fmt: skip
    broker = make_broker(tls_lines(certificates, "allow_anonymous true"))
    settings = MqttSettings(host=host, port=broker.port, tls=True, ca_file=certificates / ca)
    with publishing(settings) as publisher:
        wait(lambda: publisher.failures >= 2)
        assert not publisher.connected
    (line,) = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert said in line
    assert "certificate" in line


@half_open
def test_a_missing_client_certificate_is_one_line(
    make_broker: Any, certificates: Path, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(tls_lines(certificates, "require_certificate true"))
    settings = MqttSettings(port=broker.port, tls=True, ca_file=certificates / "ca.pem")
    with publishing(settings) as publisher:
        wait(lambda: publisher.failures >= 2)
        assert not publisher.connected
    assert "mqtt.cert_file" in caplog.text


@half_open
def test_plain_and_tls_that_meet_are_one_line(
    make_broker: Any, certificates: Path, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker()
    with publishing(MqttSettings(port=broker.port, tls=True)) as publisher:
        wait(lambda: publisher.failures >= 2)
    assert "TLS" in caplog.text


@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file"])
def test_a_tls_file_that_is_not_there_is_named(certificates: Path, name: str) -> None:
    files = {
        "ca_file": certificates / "ca.pem",
        "cert_file": certificates / "rig1.pem",
        "key_file": certificates / "rig1.key",
        name: certificates / "absent.pem",
    }
    settings = MqttSettings.model_validate({"tls": True, **files})
    with (
        pytest.raises(ConfigError, match=f"mqtt.{name} .*absent.pem"),
        publishing(settings),
    ):
        pass


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_two_agents_with_one_name_are_told_and_back_off(
    make_broker: Any, wait: Wait, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, protocol: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(connection_module, "MAX_DELAY_SECONDS", 60.0)
    broker = make_broker()
    settings = MqttSettings(port=broker.port, protocol="5" if protocol == "5" else "3.1.1")
    with publishing(settings) as one, publishing(settings) as two:
        wait(lambda: one.takeovers + two.takeovers >= 2, 60)
        # The pause before the next connect is drawn under a ceiling that has doubled each time.
        assert max(one.failures, two.failures) >= 2
    assert "another agent using this site and node" in caplog.text


def test_a_broker_that_says_who_took_the_connection_is_believed() -> None:
    # Mosquitto 2.0.11 only closes it; others send the reason of MQTT 5.
    reason = "Session taken over"
    assert why.is_takeover(reason)
    assert "two agents run with the same site and node" in why.lost(reason, True, 1)


def test_the_shipped_configuration_starts_beside_debians_own(
    tmp_path: Path, free_port: Callable[[], int], certificates: Path
) -> None:
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    ours = (ROOT / "deploy" / "mosquitto" / "rigcanary.conf").read_text()
    port = free_port()
    for before, after in (
        ("listener 8883", f"listener {port} 127.0.0.1"),
        ("/etc/mosquitto/certs/ca.pem", str(certificates / "ca.pem")),
        ("/etc/mosquitto/certs/broker.pem", str(certificates / "broker.pem")),
        ("/etc/mosquitto/certs/broker.key", str(certificates / "broker.key")),
        ("/etc/mosquitto/rigcanary-passwords", str(tmp_path / "passwords")),
        ("/etc/mosquitto/rigcanary-acl", str(ROOT / "deploy" / "mosquitto" / "acl")),
    ):
        assert before in ours
        ours = ours.replace(before, after)
    (tmp_path / "passwords").write_text("")
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "rigcanary.conf").write_text(ours)
    (tmp_path / "mosquitto.conf").write_text(
        f"persistence true\npersistence_location {tmp_path}/\nuser root\ninclude_dir {folder}\n"
    )
    with subprocess.Popen(
        [program, "-c", str(tmp_path / "mosquitto.conf")], stderr=subprocess.PIPE, text=True
    ) as broker:
        try:
            deadline = time.monotonic() + 20
            while broker.poll() is None and time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            assert broker.poll() is None, broker.stderr and broker.stderr.read()
        finally:
            broker.terminate()
