"""Bounds on what a stranger can make the worker remember: nodes, and devices of a node."""

from typing import Final

MAX_NODES: Final = 50_000
"""Nodes of one partition."""
MAX_DEVICES_A_NODE: Final = 512
"""Device ids of one node within an hour: twice what one message may name."""
FORGET_MS: Final = 3_600_000


class Roster:
    """Which devices a node named lately. Memory is bounded by the two limits."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, ...]] = {}
        self._heard_ms: dict[str, dict[str, int]] = {}

    def admit(self, key: str, devices: tuple[str, ...], ts_ms: int) -> bool:
        """Whether the node and all its devices may be remembered."""
        heard = self._heard_ms.get(key)
        if heard is None:
            if len(self._heard_ms) >= MAX_NODES:
                return False
            heard = self._heard_ms[key] = {}
        elif self._last.get(key) == devices and heard.get(devices[0] if devices else "", ts_ms) > (
            ts_ms - FORGET_MS // 2
        ):
            return True  # the common case: nothing new, and refreshed not long ago
        fresh = {d: max(ts_ms, heard.get(d, ts_ms)) for d in devices}
        if len(heard.keys() | fresh.keys()) > MAX_DEVICES_A_NODE:
            newest_ms = max((*heard.values(), ts_ms))
            kept = {d: at for d, at in heard.items() if at > newest_ms - FORGET_MS}
            if len(kept.keys() | fresh.keys()) > MAX_DEVICES_A_NODE:
                return False
            heard = self._heard_ms[key] = kept
        heard.update(fresh)
        self._last[key] = devices
        return True
