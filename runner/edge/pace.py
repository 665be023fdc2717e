"""How many requests a client may make: a bucket for each address, bounded in number. Pure."""

from collections import OrderedDict
from typing import Final

MAX_CLIENTS: Final = 4096
"""Addresses remembered; the one not heard of for longest is forgotten, which favours it."""


class Pace:
    """``per_second`` requests a client in the long run, ``burst`` at once; 0 does not limit."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, client: str, now_seconds: float, cost: float = 1.0) -> float:
        """0 when the request may pass, and is counted; else in how many seconds it may."""
        if self._per_second <= 0:
            return 0.0
        left, at = self._clients.pop(client, (float(self._burst), now_seconds))
        left = min(left + max(now_seconds - at, 0.0) * self._per_second, float(self._burst))
        passes = left >= cost
        self._clients[client] = (left - cost if passes else left, now_seconds)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return 0.0 if passes else (cost - left) / self._per_second

    def __len__(self) -> int:
        return len(self._clients)
