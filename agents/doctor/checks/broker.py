"""The MQTT broker: reachable, willing, and over a certificate that stays valid.

It is spoken to with the agent's own settings and another client id, so that a running agent
keeps its connection.
"""

import secrets
import socket
import ssl
import time
from datetime import UTC, datetime
from typing import Any, Final

from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine
from agents.settings import MqttSettings
from contract.errors import ConfigError

DEADLINE_SECONDS: Final = 5.0
_WARN_DAYS: Final = 14
_LOOPBACK: Final = ("127.", "localhost", "::1")


def reach(mqtt: MqttSettings, *, given: bool) -> list[Finding]:
    """The broker takes a connection with the agent's user and password."""
    name, wanted = "broker", "a connection"
    if not given:
        return [
            Finding(
                name,
                None,
                Status.UNKNOWN,
                "no broker named",
                wanted,
                "there is nothing to connect to",
                "rigcanary doctor --mqtt HOST:PORT, or --config with the agent's file",
            )
        ]
    where = f"{mqtt.host}:{mqtt.port}"
    try:
        said = _connect(mqtt)
    except (ConfigError, OSError, ValueError) as error:
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                where,
                wanted,
                _explain(error),
                "is the broker up and its port open in the firewall? see --mqtt, --config",
            )
        ]
    except ModuleNotFoundError:
        return [
            Finding(
                name,
                None,
                Status.UNKNOWN,
                where,
                wanted,
                "paho-mqtt is not installed",
                "pip install 'rigcanary[agent]'",
            )
        ]
    if said is None:
        return [Finding(name, None, Status.PASS, where, wanted)]
    return [
        Finding(
            name,
            None,
            Status.FAIL,
            where,
            wanted,
            f"the broker answers: {said}",
            "check username, password_file and the broker's access list",
        )
    ]


def _connect(mqtt: MqttSettings) -> str | None:
    """None where the broker accepted; else what it said, or that it said nothing."""
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    answers: list[Any] = []
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"rigcanary-doctor-{secrets.token_hex(4)}",
        protocol=paho.MQTTv5 if mqtt.protocol == "5" else paho.MQTTv311,
    )
    if mqtt.username is not None:
        client.username_pw_set(mqtt.username, mqtt.read_password())
    if mqtt.tls:
        client.tls_set_context(_context(mqtt))
    client.on_connect = lambda *arguments: answers.append(arguments[3])
    client.connect_timeout = DEADLINE_SECONDS
    # paho waits as long as the keepalive for a TLS handshake.
    client.connect(mqtt.host, mqtt.port, keepalive=int(max(DEADLINE_SECONDS, 1)))
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while not answers and time.monotonic() < deadline:
            code = client.loop(timeout=0.2)
            if code != paho.MQTT_ERR_SUCCESS and not answers:
                return str(paho.error_string(code))
    finally:
        client.disconnect()
    if not answers:
        return f"nothing within {DEADLINE_SECONDS:g} s (is this an MQTT port?)"
    return str(answers[0]) if answers[0].is_failure else None


def tls(machine: Machine, mqtt: MqttSettings, *, given: bool) -> list[Finding]:
    """The connection is encrypted and the certificates hold for a while yet."""
    name = "broker-tls"
    if not given:
        return []
    if not mqtt.tls:
        if mqtt.host.startswith(_LOOPBACK):
            return [Finding(name, None, Status.PASS, "off", "", "the broker is on this machine")]
        return [
            Finding(
                name,
                None,
                Status.WARN,
                "off",
                "on",
                "readings and the password cross the network in the clear",
                "set mqtt.tls and mqtt.ca_file (--mqtt-ca-file), and a TLS port (8883)",
            )
        ]
    try:
        context = _context(mqtt)
        with (
            socket.create_connection((mqtt.host, mqtt.port), DEADLINE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=mqtt.host) as wrapped,
        ):
            certificate = wrapped.getpeercert() or {}
            version = wrapped.version() or "TLS"
    except (ConfigError, OSError, ValueError) as error:
        return [
            Finding(
                name,
                None,
                Status.FAIL,
                f"{mqtt.host}:{mqtt.port}",
                "a certificate that holds",
                _explain(error),
                "is this the broker's TLS port, ca_file the one that signed it, and the host name "
                "the one in the certificate?",
            )
        ]
    ends = str(certificate.get("notAfter", ""))
    found = [_days(name, f"{version}, server's certificate", _days_left(ends))]
    if mqtt.cert_file is not None:
        printed = machine.run("openssl", "x509", "-noout", "-enddate", "-in", str(mqtt.cert_file))
        if printed.good is None:
            found.append(
                Finding(
                    name,
                    None,
                    Status.UNKNOWN,
                    "client's certificate",
                    "",
                    printed.problem or "openssl gave no date",
                )
            )
        else:
            ends = printed.good.strip().removeprefix("notAfter=")
            found.append(_days(name, "client's certificate", _days_left(ends)))
    return found


def _days(name: str, what: str, days: int | None) -> Finding:
    wanted = f"{_WARN_DAYS} days or more"
    fix = "renew it, and let something renew it by itself"
    if days is None:
        return Finding(name, None, Status.UNKNOWN, what, wanted, "its end date could not be read")
    if days < 0:
        return Finding(name, None, Status.FAIL, f"{what} ended", wanted, "no one accepts it", fix)
    if days < _WARN_DAYS:
        return Finding(
            name, None, Status.WARN, f"{what}: {days} days", wanted,
            "when it ends, every agent loses the broker at once", fix,
        )  # fmt: skip
    return Finding(name, None, Status.PASS, f"{what}: {days} days", wanted)


def _days_left(not_after: str) -> int | None:
    try:
        ends = ssl.cert_time_to_seconds(not_after)
    except ValueError:
        return None
    return int((ends - datetime.now(UTC).timestamp()) // 86400)


def _context(mqtt: MqttSettings) -> ssl.SSLContext:
    files = ", ".join(str(path) for path in (mqtt.ca_file, mqtt.cert_file, mqtt.key_file) if path)
    try:
        context = ssl.create_default_context(cafile=mqtt.ca_file)
        if mqtt.cert_file is not None:
            context.load_cert_chain(mqtt.cert_file, mqtt.key_file)
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"certificates cannot be loaded ({files}): {why}") from error
    return context


def _explain(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return f"no answer within {DEADLINE_SECONDS:g} s"
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return str(error)
