"""Telling systemd that the agent is ready, alive and ending (sd_notify(3)), without a library."""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

WATCHDOG_INTERVALS: Final = 3.0
"""A watchdog shorter than this many ticks would end a healthy agent: systemd is told a longer."""


class Notifier:
    """Writes to ``$NOTIFY_SOCKET``; does nothing where there is none."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        microseconds = environment.get("WATCHDOG_USEC", "")
        pid = environment.get("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        self._watchdog_seconds = int(microseconds) / 1e6 if mine and microseconds.isdigit() else 0.0

    def ready(self, tick_seconds: float) -> None:
        """The agent has begun; a tick comes every ``tick_seconds`` of wall time."""
        state = "READY=1"
        needed = WATCHDOG_INTERVALS * tick_seconds
        if 0 < self._watchdog_seconds < needed:
            state += f"\nWATCHDOG_USEC={round(needed * 1e6)}"
        self._send(state)

    def ticked(self, status: str) -> None:
        """A tick was taken and handed over: the only thing that feeds the watchdog."""
        self._send(f"WATCHDOG=1\nSTATUS={status}" if self._watchdog_seconds else f"STATUS={status}")

    def stopping(self) -> None:
        """The agent is ending by itself or was told to."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # A systemd that does not listen must not end the agent, nor hold it up.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify,
        ):
            notify.setblocking(False)
            notify.sendto(state.encode(), self._address)
