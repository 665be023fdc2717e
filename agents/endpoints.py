"""What people type: ``HOST:PORT`` and points in time."""

from datetime import UTC, datetime
from math import isfinite

from contract.errors import ConfigError


def host_port(text: str, option: str, default_port: int) -> tuple[str, int]:
    """Split ``HOST``, ``HOST:PORT`` or ``[IPv6]:PORT``.

    Raises:
        ConfigError: naming ``option``.
    """
    rest = text.removeprefix("mqtt://")
    if "://" in rest:
        raise ConfigError(
            f"{option} {text!r} is not HOST or HOST:PORT, such as 127.0.0.1:{default_port}; TLS is "
            "turned on with a CA file"
        )
    host, colon, port = rest.rpartition(":")
    if rest.startswith("["):
        bracket, _, tail = rest[1:].partition("]")
        host, colon, port = bracket, tail[:1], tail[1:]
    elif not colon or rest.count(":") > 1:
        host, colon, port = rest, "", ""
    if not host or (colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigError(
            f"{option} {text!r} is not HOST or HOST:PORT, such as 127.0.0.1:{default_port}"
        )
    return host, int(port) if port else default_port


def unix_seconds(text: str, option: str) -> float:
    """A point in time given as Unix seconds or RFC 3339 (UTC where it names no zone).

    Raises:
        ConfigError: naming ``option``.
    """
    try:
        seconds = float(text)
        if isfinite(seconds):
            return seconds
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is neither Unix seconds nor a time like 2026-01-31T12:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def speed_of(text: str) -> float | None:
    """A replay's speed: data seconds a wall second, None for ``0`` or ``max``.

    Raises:
        ConfigError: it is none of these.
    """
    if text.strip().lower() == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed < 1e9:
        raise ConfigError(f"--speed {text!r} is not a number of 0 or more, nor max")
    return speed or None
