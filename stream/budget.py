"""How much may be moved by itself: a cap over each site, and a circuit breaker behind it.

Pure: event time is an argument, the state goes to and from plain JSON values. A site's time
never runs backwards; an ask that comes with an older time counts at the newest one seen, so that
late input cannot squeeze more moves into a window.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

MINUTE_MS: Final = 60_000
STATE_VERSION: Final = 1

TransitionType = Literal["breaker.opened", "breaker.closed"]
Reason = Literal["window", "open", "breaker"]


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """All numbers of the budget.

    At most max(``window_devices``, ``window_ratio`` × devices) moves in any ``window_ms``, and at
    most max(``open_devices``, ``open_ratio`` × devices) whose episodes have not ended. The
    absolute numbers keep a two-card site able to act. The breaker closes after ``calm_ms`` in
    which no more was asked for than those limits allow. A move counts as open for
    ``open_expires_ms`` at most, should its end never be heard of.

    Raises:
        ValueError: for numbers that make no sense, naming the one.
    """

    window_ms: int = 10 * MINUTE_MS
    window_devices: int = 2
    window_ratio: float = 0.05
    open_devices: int = 2
    open_ratio: float = 0.20
    calm_ms: int = 30 * MINUTE_MS
    open_expires_ms: int = 24 * 60 * MINUTE_MS

    def __post_init__(self) -> None:
        for name in ("window_ms", "calm_ms", "open_expires_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be over 0")
        for name in ("window_devices", "open_devices"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more")
        for name in ("window_ratio", "open_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1")

    def window_limit(self, devices_known: int) -> int:
        """Moves allowed in any window at a site of this many devices."""
        return max(self.window_devices, int(devices_known * self.window_ratio))

    def open_limit(self, devices_known: int) -> int:
        """Moves allowed to be open at once at a site of this many devices."""
        return max(self.open_devices, int(devices_known * self.open_ratio))


@dataclass(frozen=True, slots=True)
class Transition:
    """The breaker of a site opened or closed. ``data`` is the webhook's, without times."""

    type: TransitionType
    site: str
    at_ms: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """``allowed``, or held: by the ``window``, the number ``open``, or the ``breaker``."""

    allowed: bool
    reason: Reason | None = None
    transitions: tuple[Transition, ...] = ()


@dataclass(slots=True)
class _Site:
    """Times in ms. Bounded: ``moved`` and ``asked`` by the limits, ``open`` by the open limit."""

    now_ms: int = 0
    moved: list[int] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    opened_ms: int | None = None
    excess_ms: int = 0


class Budget:
    """Asks are counted per site; the same asks in the same order get the same answers."""

    def __init__(self, policy: BudgetPolicy | None = None) -> None:
        self.policy = policy or BudgetPolicy()
        self._sites: dict[str, _Site] = {}

    def ask(self, site: str, device: str, at_ms: int, devices_known: int) -> Answer:
        """Whether ``device`` may be moved now; an allowed move is counted.

        A device whose move is still open is allowed again without being counted again. Demand
        past a limit opens the breaker, and while it is open nothing more is allowed.
        """
        state = self._sites.setdefault(site, _Site())
        transitions = self._advance(site, state, at_ms)
        now = state.now_ms
        if device in state.open:
            return Answer(True, None, transitions)
        window_limit = self.policy.window_limit(devices_known)
        open_limit = self.policy.open_limit(devices_known)
        state.asked.pop(device, None)
        state.asked[device] = now
        # One over the limit tells as much as all of them, and keeps the state small in a storm.
        while len(state.asked) > window_limit + 1:
            state.asked.pop(next(iter(state.asked)))
        waiting = sum(name not in state.open for name in state.asked)
        reason: Reason | None = None
        if len(state.moved) >= window_limit or len(state.asked) > window_limit:
            reason = "window"
        elif len(state.open) + waiting > open_limit:
            reason = "open"
        if reason is not None:
            state.excess_ms = now
            if state.opened_ms is None:
                state.opened_ms = now
                transitions += (self._opened(site, state, reason, devices_known),)
            return Answer(False, reason, transitions)
        if state.opened_ms is not None:
            return Answer(False, "breaker", transitions)
        state.moved.append(now)
        state.open[device] = now
        return Answer(True, None, transitions)

    def ended(self, site: str, device: str) -> None:
        """The device's episode is over; its move no longer counts as open."""
        state = self._sites.get(site)
        if state is not None:
            state.open.pop(device, None)
            state.asked.pop(device, None)

    def advance(self, site: str, at_ms: int) -> tuple[Transition, ...]:
        """Let event time pass at a site; the breaker may close by calm."""
        state = self._sites.get(site)
        return self._advance(site, state, at_ms) if state is not None else ()

    def close(self, site: str, at_ms: int, by: str) -> tuple[Transition, ...]:
        """Close the breaker by hand; ``by`` says who. The limits go on counting."""
        transitions = self.advance(site, at_ms)
        if not self.is_open(site):
            return transitions
        return (*transitions, self._closed(site, self._sites[site], f"closed by {by}"))

    def is_open(self, site: str) -> bool:
        """Whether the site's breaker is open, as of the last time told."""
        state = self._sites.get(site)
        return state is not None and state.opened_ms is not None

    def sites(self) -> list[str]:
        """Sites with a state to keep."""
        return list(self._sites)

    def forget(self, site: str) -> None:
        """Drop a site's state (its partition went to another worker)."""
        self._sites.pop(site, None)

    def dump(self, site: str) -> dict[str, Any]:
        """The site's state in plain JSON values."""
        state = self._sites.get(site, _Site())
        return {
            "v": STATE_VERSION,
            "now_ms": state.now_ms,
            "moved": list(state.moved),
            "open": dict(state.open),
            "asked": list(state.asked.items()),
            "opened_ms": state.opened_ms,
            "excess_ms": state.excess_ms,
        }

    def load(self, site: str, value: Mapping[str, Any]) -> None:
        """Take the state of :meth:`dump` back; answers go on as if nothing had happened.

        Raises:
            ValueError: when it is of another version.
        """
        if value.get("v") != STATE_VERSION:
            raise ValueError(
                f"budget state of site {site!r} is of another version; "
                f"version {STATE_VERSION} is understood"
            )
        self._sites[site] = _Site(
            now_ms=int(value["now_ms"]),
            moved=[int(at) for at in value["moved"]],
            open={str(k): int(at) for k, at in value["open"].items()},
            asked={str(k): int(at) for k, at in value["asked"]},
            opened_ms=None if value["opened_ms"] is None else int(value["opened_ms"]),
            excess_ms=int(value["excess_ms"]),
        )

    def _advance(self, site: str, state: _Site, at_ms: int) -> tuple[Transition, ...]:
        state.now_ms = now = max(state.now_ms, at_ms)
        oldest = now - self.policy.window_ms
        state.moved = [at for at in state.moved if at > oldest]
        state.asked = {name: at for name, at in state.asked.items() if at > oldest}
        expired = now - self.policy.open_expires_ms
        state.open = {name: at for name, at in state.open.items() if at > expired}
        if state.opened_ms is None or now - state.excess_ms < self.policy.calm_ms:
            return ()
        return (self._closed(site, state, "calm"),)

    def _opened(self, site: str, state: _Site, reason: Reason, devices_known: int) -> Transition:
        minutes = self.policy.window_ms / MINUTE_MS
        limit = self.policy.window_limit(devices_known)
        why = f"more than {limit} moves asked for within {minutes:g} minutes"
        if reason == "open":
            limit = self.policy.open_limit(devices_known)
            why = f"more than {limit} moves would be open at once"
        return Transition(
            "breaker.opened",
            site,
            state.now_ms,
            {
                "site": site,
                "cause": reason,
                "limit": limit,
                "devices_known": devices_known,
                "moved_in_window": len(state.moved),
                "open": len(state.open),
                "reason": f"{why}, of {devices_known} devices; nothing more is moved by itself",
            },
        )

    def _closed(self, site: str, state: _Site, why: str) -> Transition:
        opened = state.opened_ms if state.opened_ms is not None else state.now_ms
        state.opened_ms = None
        return Transition(
            "breaker.closed",
            site,
            state.now_ms,
            {
                "site": site,
                "reason": why,
                "open_seconds": (state.now_ms - opened) / 1000,
            },
        )


class BudgetGate:
    """A :class:`Budget` as the decider asks it (``stream.decide.Gate``).

    ``devices_known(site)`` is the number of devices the site has now. A whole node that is lost
    asks as one. ``transitions`` collects what the breaker did until :meth:`take` empties it.
    """

    def __init__(self, budget: Budget, devices_known: Callable[[str], int]) -> None:
        self.budget = budget
        self._devices_known = devices_known
        self._transitions: list[Transition] = []

    def allows(self, site: str, node: str, device: str | None, at_ms: int) -> bool:
        """Ask once; an allowed move is counted."""
        answer = self.budget.ask(site, _name(node, device), at_ms, self._devices_known(site))
        self._transitions += answer.transitions
        return answer.allowed

    def ended(self, site: str, node: str, device: str | None, at_ms: int) -> None:
        """The episode is over: the move does not count as open any more."""
        self.budget.ended(site, _name(node, device))
        self.advance((site,), at_ms)

    def advance(self, sites: Iterable[str], at_ms: int) -> None:
        """Let event time pass at these sites."""
        for site in sites:
            self._transitions += self.budget.advance(site, at_ms)

    def take(self) -> list[Transition]:
        """Transitions since the last call, oldest first."""
        taken, self._transitions = self._transitions, []
        return taken


def _name(node: str, device: str | None) -> str:
    return node if device is None else f"{node}/{device}"
