"""TCP ports of the parts: which are free, and what to say when one is taken."""

import errno
import secrets
import socket
from typing import Final

from contract.errors import ConfigError

HOST: Final = "127.0.0.1"
"""Everything on one machine listens here and nowhere else."""

_LOW, _HIGH = 20_000, 32_000
"""Below Linux's default range of outgoing ports (32768–60999), so that a connection which
happens to be open cannot sit on a port between our choice and our bind."""


def is_free(port: int, host: str = HOST) -> bool:
    """Whether ``host:port`` can be bound now."""
    try:
        _bind(port, host).close()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise
    return True


def _bind(port: int, host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def free_port(taken: set[int], host: str = HOST) -> int:
    """A port that is free now and not in ``taken``; drawn at random, so that two demos that
    start together do not pick the same one.

    Raises:
        ConfigError: when none was found.
    """
    for _ in range(200):
        port = _LOW + secrets.randbelow(_HIGH - _LOW)
        if port not in taken and is_free(port, host):
            return port
    raise ConfigError(f"found no free port between {_LOW} and {_HIGH} on {host}")


def choose(options: dict[str, int], host: str = HOST) -> dict[str, int]:
    """Ports for ``options`` (option name → port, 0 for a free one), none used twice.

    Raises:
        ConfigError: naming the option whose port is taken or given twice.
    """
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    for option, port in options.items():
        if port == 0:
            continue
        if port in taken:
            raise ConfigError(f"{option} {port} is given twice; every part needs its own port")
        if not is_free(port, host):
            raise ConfigError(
                f"{option} {port} is taken on {host}; stop what listens there, or give another "
                f"port ({option} 0 picks a free one)"
            )
        chosen[option] = port
        taken.add(port)
    for option, port in options.items():
        if port == 0:
            chosen[option] = free_port(taken, host)
            taken.add(chosen[option])
    return {option: chosen[option] for option in options}
