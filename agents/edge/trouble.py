"""What went wrong with a connection to the broker, in one line for a person with the next step."""

import socket
import ssl

from agents.settings import MqttSettings


def connect_failure(error: BaseException | None, tls: bool) -> str:
    """A connect that did not come about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"TLS: its certificate is not accepted ({error.verify_message}); "
            "check mqtt.ca_file and mqtt.host"
        )
    if isinstance(error, ssl.SSLError):
        return f"TLS: no handshake ({error.reason or error}); check that mqtt.port speaks TLS"
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror}); check mqtt.host"
    if isinstance(error, TimeoutError):
        return "cannot connect (no answer)"
    if tls and isinstance(error, ConnectionResetError):
        return "TLS: no handshake (it hung up); check that mqtt.port speaks TLS"
    if isinstance(error, OSError):
        return f"cannot connect ({error.strerror or error})"
    return "cannot connect"


def refusal(reason: str) -> str:
    """A broker that answered no; the words are those of its answer."""
    lower = reason.lower()
    if "author" in lower or "password" in lower:
        return (
            f"refused the connection: {reason}; check mqtt.username, its password, and that the "
            "broker's ACL lets this site and node write"
        )
    if "identifier" in lower:
        return f"refused the connection: {reason}; the client id is made of site and node"
    return f"refused the connection: {reason}"


def broken_off(reason: str, tls: bool) -> str:
    """A connection that ended before the broker said yes or no."""
    ask = "does it ask for a client certificate (mqtt.cert_file)?"
    hint = ask if tls else "does mqtt.port ask for TLS?"
    return f"ended the connection before it answered ({reason}); {hint}"


def is_takeover(reason: str) -> bool:
    """Whether the broker (MQTT 5) says that another client came with this client id."""
    return "taken over" in reason.lower()


def lost(reason: str, taken: bool, short: int) -> str:
    """A connection that ended; ``short`` is how many in a row held less than half a minute."""
    if taken:
        return (
            "another client took this client id: two agents run with the same site and node; "
            "give each rig its own node"
        )
    if short >= 2:
        return (
            f"connection lost soon after it was made, again ({reason}); is another agent using "
            "this site and node?"
        )
    return f"connection lost ({reason})"


def tls_files(settings: MqttSettings, error: Exception) -> str:
    """TLS files that cannot be used; names the first that cannot be read."""
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(settings, name)
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as reading:
            return f"mqtt.{name} {path}: cannot read it: {reading.strerror}"
    return f"mqtt TLS files (ca_file, cert_file, key_file) cannot be used: {error}"
