"""The cards as the newest tick saw them, for the agent's own ``/metrics``."""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from contract.message import Message
from contract.signals import SIGNAL_NAMES, STATES

FORGET_SECONDS: Final = 3_600.0
"""A card that is gone is shown as absent for this long, then not at all."""
STALE_INTERVALS: Final = 5.0
"""Without a tick for so many intervals the last values are no longer shown: they say nothing of
now. At least a minute."""
MAX_DEVICES: Final = 256
INFO: Final = ("vendor", "model", "serial", "driver")


@dataclass(slots=True)
class DeviceNow:
    """One card. ``gone_at`` is when it was first missing or lost, None while it is there."""

    ts: float
    state: str
    gone_at: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)


class DeviceView:
    """Fed by the sampling thread, read by the server's."""

    def __init__(self, interval_seconds: float, monotonic: Callable[[], float]) -> None:
        self._stale_after = max(60.0, STALE_INTERVALS * interval_seconds)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._devices: dict[str, DeviceNow] = {}
        self._ticked_at = monotonic()

    def observe(self, telemetry: Message | None) -> None:
        """Take a tick's message; None where a rig that is played back had no sample."""
        now = self._monotonic()
        with self._lock:
            self._ticked_at = now
            seen = {str(d["device"]): d for d in telemetry["devices"]} if telemetry else {}
            for name, device in self._devices.items():
                if name not in seen:
                    device.values = {}
                    if telemetry is not None and device.gone_at is None:
                        device.gone_at = now
            for name, reading in seen.items():
                self._update(name, reading, float(telemetry["ts"]) if telemetry else 0.0, now)
            self._forget(now)

    def devices(self) -> dict[str, DeviceNow]:
        """A copy of the cards as they are now."""
        now = self._monotonic()
        with self._lock:
            stale = now - self._ticked_at > self._stale_after
            self._forget(now)
            return {
                name: DeviceNow(d.ts, d.state, d.gone_at, {} if stale else d.values, d.info)
                for name, d in self._devices.items()
            }

    def _update(self, name: str, reading: Mapping[str, Any], ts: float, now: float) -> None:
        device = self._devices.get(name)
        if device is None:
            if len(self._devices) >= MAX_DEVICES:
                return
            device = self._devices[name] = DeviceNow(ts, "unknown")
        state = str(reading.get("state", "ok"))
        device.state = state if state in STATES else "unknown"
        if device.state == "lost":
            device.gone_at = now if device.gone_at is None else device.gone_at
        elif device.state != "unknown":
            # Unknown says that nobody could look: a lost card is not back by that.
            device.gone_at, device.ts = None, ts
        shown = device.gone_at is None
        device.values = {k: v for k in SIGNAL_NAMES if (v := _number(reading.get(k))) is not None}
        if not shown:
            device.values = {}
        info = {key: str(reading[key]) for key in INFO if reading.get(key) is not None}
        if reading.get("index") is not None:
            info["index"] = str(reading["index"])
        device.info = info

    def _forget(self, now: float) -> None:
        for name, device in list(self._devices.items()):
            if device.gone_at is not None and now - device.gone_at > FORGET_SECONDS:
                # A card that stays in the messages as lost begins its time once: it is not
                # counted anew, because its entry stays, without anything to show.
                device.values, device.info = {}, {}
                if device.state != "lost":
                    del self._devices[name]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def forgotten(device: DeviceNow, now: float) -> bool:
    """Whether a card has been gone for so long that it has no series left."""
    return device.gone_at is not None and now - device.gone_at > FORGET_SECONDS
