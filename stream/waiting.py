"""Moves that the budget holds: who asks again first when there is room."""

from collections.abc import Iterator

from contract.minute import MINUTE_MS

Place = tuple[str, str | None]
"""Node and device; a whole node has no device."""
Priority = tuple[float, int, float]
SILENCED = 99
"""Second part of the priority of what a silence holds, not the budget."""


class Waiting:
    """What waits at each site, in order, and the site's event time (ms). Bounded by the devices."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Place, Priority]] = {}
        self._now_ms: dict[str, int] = {}
        self._asked_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def any(self, site: str) -> bool:
        """Whether the budget holds anything at a site."""
        return any(p[1] != SILENCED for p in self._places.get(site, {}).values())

    def add(self, site: str, place: Place, priority: Priority) -> None:
        """A move is held; the lowest priority goes first."""
        self._places.setdefault(site, {})[place] = priority

    def drop(self, site: str, place: Place) -> None:
        """It waits no more."""
        places = self._places.get(site)
        if places is not None:
            places.pop(place, None)
            if not places:
                del self._places[site]

    def forget(self) -> None:
        """The partitions were taken away."""
        self._places.clear()

    def advance(self, site: str, at_ms: int) -> None:
        """Tell a site's event time."""
        self._now_ms[site] = max(self._now_ms.get(site, 0), at_ms)

    def now_ms(self, site: str) -> int | None:
        """The site's event time, once it is known."""
        return self._now_ms.get(site)

    def turns(self) -> Iterator[tuple[str, Place, int]]:
        """Who may ask again now, and the time that it counts at: once a minute of event time."""
        for site in sorted(self._places):
            at_ms = self._now_ms.get(site, 0)
            if at_ms < self._asked_ms.get(site, 0) + MINUTE_MS:
                continue
            self._asked_ms[site] = at_ms
            places = self._places[site]
            order = sorted(places, key=lambda p: (places[p], p[0], p[1] or ""))
            for place in order:
                yield site, place, at_ms
