"""What ``quarantine``, ``release``, ``retire``, ``silence`` and ``breaker`` share."""

import asyncio
import getpass
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from typing import Any, Final

from contract.errors import ConfigError, RigcanaryError

WEB: Final = "http://127.0.0.1:6067"
KAFKA: Final = "127.0.0.1:9092"
ANSWER_SECONDS: Final = 15.0


def who(by: str | None) -> str:
    """The person's name: as given, or the login name."""
    return by or os.environ.get("SUDO_USER") or getpass.getuser()


def split_node(node: str) -> tuple[str, str]:
    """``SITE/NODE`` in two.

    Raises:
        ConfigError: when it is not of that shape.
    """
    site, slash, name = node.partition("/")
    if not slash or not site or not name:
        raise ConfigError(f"{node!r} is no SITE/NODE; write for example lab/rig001")
    return site, name


def send(kafka: str, web: str, command: dict[str, Any], *, every_partition: bool = False) -> str:
    """Send a command over Kafka and wait for the worker's answer on its page.

    Raises:
        ConfigError: when the command is not one.
        RigcanaryError: when Kafka cannot be reached, or the worker refused.
    """
    from stream import manual
    from stream.edge.command_send import send_command

    value = {
        "schema": manual.SCHEMA,
        "command_id": f"cmd_{uuid.uuid4().hex}",
        "at": round(time.time(), 3),
        **command,
    }
    try:
        manual.parse(value)
    except ValueError as error:
        raise ConfigError(f"{command['command']}: {error}") from error
    asyncio.run(send_command(kafka, value, every_partition=every_partition))
    answer = _answer(web, value["command_id"])
    if answer is None:
        return f"sent as {value['command_id']}; no worker at --web {web} has answered yet"
    if answer.startswith("refused"):
        raise RigcanaryError(answer.removeprefix("refused: "))
    return answer


def fetch(web: str, path: str) -> Any:
    """JSON of a worker's page.

    Raises:
        RigcanaryError: when there is none.
    """
    try:
        with urllib.request.urlopen(f"{web.rstrip('/')}{path}", timeout=5.0) as reply:  # noqa: S310 - the user's URL
            return json.load(reply)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise RigcanaryError(
            f"--web {web}: no answer ({reason}); is a worker running, and is this its page?"
        ) from error


def _answer(web: str, command_id: str) -> str | None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        try:
            url = f"{web.rstrip('/')}/api/commands/{command_id}"
            with urllib.request.urlopen(url, timeout=5.0) as reply:  # noqa: S310 - the user's URL
                return str(json.load(reply)["answer"])
        except urllib.error.HTTPError:
            time.sleep(0.3)  # 404: not carried out yet
        except (OSError, ValueError, KeyError):
            return None
    return None
