"""The doctor at a real broker, and at certificates that hold, end soon, ended, or are strange."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doctor_rig import FakeRig

from agents.doctor.checks import broker as check
from agents.doctor.finding import Status
from agents.doctor.machine import Machine
from agents.settings import MqttSettings

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


def test_without_a_named_broker_nothing_is_known() -> None:
    (reach,) = check.reach(MqttSettings(), given=False)
    assert (reach.status, "--mqtt" in reach.fix) == (Status.UNKNOWN, True)
    assert check.tls(Machine(), MqttSettings(), given=False) == []


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_broker_that_accepts(broker, protocol) -> None:
    port = broker.port if protocol == "3.1.1" else broker.port_v5
    (finding,) = check.reach(MqttSettings(port=port, protocol=protocol), given=True)
    assert finding.status is Status.PASS, finding


def test_nobody_listens(broker) -> None:
    broker.stop()
    (finding,) = check.reach(MqttSettings(port=broker.port), given=True)
    assert finding.status is Status.FAIL
    assert "refused" in finding.reason


def test_a_name_that_does_not_resolve_and_a_password_file_that_is_not_there() -> None:
    (finding,) = check.reach(MqttSettings(host="no-such-host.invalid"), given=True)
    assert finding.status is Status.FAIL
    settings = MqttSettings(username="rig", password_file=Path("/nowhere/secret"))
    (finding,) = check.reach(settings, given=True)
    assert (finding.status, "/nowhere/secret" in finding.reason) == (Status.FAIL, True)


def test_a_port_that_speaks_something_else_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "DEADLINE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (finding,) = check.reach(MqttSettings(port=silent.getsockname()[1]), given=True)
    assert finding.status is Status.FAIL
    assert "nothing within 0.5 s" in finding.reason


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="no mosquitto here")
def test_a_wrong_password_is_told_and_never_shown(
    tmp_path: Path, wait: Callable[..., None]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous false\n")
    with subprocess.Popen(["mosquitto", "-c", config], stderr=subprocess.DEVNULL) as mosquitto:
        try:
            wait(lambda: listens(port))
            settings = MqttSettings(port=port, username="rig", password="hunter2")
            (finding,) = check.reach(settings, given=True)
        finally:
            mosquitto.terminate()
    assert finding.status is Status.FAIL
    assert "ot authorized" in finding.reason
    assert "hunter2" not in str(finding)


def test_tls_off_matters_on_a_network_only() -> None:
    (near,) = check.tls(Machine(), MqttSettings(), given=True)
    (far,) = check.tls(Machine(), MqttSettings(host="broker.lan"), given=True)
    assert (near.status, far.status) == (Status.PASS, Status.WARN)


def certificate(folder: Path, days: int, name: str = "localhost") -> Path:
    path = folder / f"{name}{days}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", str(days), "-subj", f"/CN={name}", "-addext",
         f"subjectAltName=DNS:{name}", "-keyout", f"{path}.key", "-out", path],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


class TlsServer:
    """Shakes hands with one certificate, one client after the other."""

    def __init__(self, path: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(path, f"{path}.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(plain, server_side=True) as wrapped:
                    wrapped.recv(1)
            except OSError:
                plain.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[[Path], int]]:
    servers: list[TlsServer] = []

    def start(path: Path) -> int:
        servers.append(TlsServer(path))
        return servers[-1].port

    yield start
    for server in servers:
        server.close()


@needs_openssl
@pytest.mark.parametrize(("days", "status"), [(60, Status.PASS), (5, Status.WARN)])
def test_days_that_the_certificate_has_left(days, status, tmp_path, serve) -> None:
    path = certificate(tmp_path, days)
    settings = MqttSettings(host="localhost", port=serve(path), tls=True, ca_file=path)

    (finding,) = check.tls(Machine(), settings, given=True)

    assert finding.status is status, finding
    assert f"{days - 1} days" in finding.found


@needs_openssl
def test_a_certificate_of_another_name_or_another_authority_is_refused(tmp_path, serve) -> None:
    other = certificate(tmp_path, 60, "other.lan")
    port = serve(other)
    strange = certificate(tmp_path, 60)

    named = MqttSettings(host="localhost", port=port, tls=True, ca_file=other)
    signed = MqttSettings(host="localhost", port=port, tls=True, ca_file=strange)
    (wrong_name,) = check.tls(Machine(), named, given=True)
    (wrong_ca,) = check.tls(Machine(), signed, given=True)

    assert (wrong_name.status, wrong_ca.status) == (Status.FAIL, Status.FAIL)
    assert "other.lan" in wrong_name.reason or "ostname" in wrong_name.reason
    assert "refused" in wrong_ca.reason


@needs_openssl
def test_a_plain_port_is_no_tls_and_a_missing_ca_file_is_named(broker, tmp_path) -> None:
    path = certificate(tmp_path, 60)
    plain = MqttSettings(host="localhost", port=broker.port, tls=True, ca_file=path)
    (finding,) = check.tls(Machine(), plain, given=True)
    assert finding.status is Status.FAIL
    gone = MqttSettings(host="localhost", tls=True, ca_file=tmp_path / "gone.pem")
    (finding,) = check.tls(Machine(), gone, given=True)
    assert finding.status is Status.FAIL
    assert "gone.pem" in finding.reason


@needs_openssl
def test_the_client_certificate_has_an_end_too(tmp_path, serve) -> None:
    path = certificate(tmp_path, 60)
    settings = MqttSettings(
        host="localhost", port=serve(path), tls=True, ca_file=path,
        cert_file=path, key_file=Path(f"{path}.key"),
    )  # fmt: skip
    ends = f"openssl x509 -noout -enddate -in {path}"

    _, own = check.tls(Machine(), settings, given=True)
    _, ended = check.tls(
        FakeRig(tmp_path).says(ends, "notAfter=Jan  1 00:00:00 2020 GMT\n").machine,
        settings, given=True,
    )  # fmt: skip
    _, unseen = check.tls(FakeRig(tmp_path).machine, settings, given=True)

    assert (own.status, ended.status, unseen.status) == (
        Status.PASS, Status.FAIL, Status.UNKNOWN,
    )  # fmt: skip
