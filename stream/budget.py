"""How much may be moved by itself: a cap over each site, and a circuit breaker behind it.

Pure: event time is an argument, the state goes to and from plain JSON values. A site's time
never runs backwards; an ask that comes with an older time counts at the newest one seen, so that
late input cannot squeeze more moves into a window.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

MINUTE_MS: Final = 60_000
STATE_VERSION: Final = 2

TransitionType = Literal["breaker.opened", "breaker.closed"]
Reason = Literal["window", "open", "breaker", "lost"]


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
    """``allowed``, or held: by the ``window``, the number ``open``, the ``breaker``, or because
    more cards are ``lost`` than may move in a window.
    """

    allowed: bool
    reason: Reason | None = None
    transitions: tuple[Transition, ...] = ()


Move = tuple[int, int]
"""When, in ms, and of how many devices (a whole node is all of its cards)."""


@dataclass(slots=True)
class _Site:
    """Times in ms. Bounded: ``moved``, ``lost_moved`` and ``asked`` by the limits, ``open`` by
    the open limit. ``lost_moved`` are moves off cards that are gone, which have a window of
    their own (docs/decisions/0040).
    """

    now_ms: int = 0
    moved: list[Move] = field(default_factory=list)
    lost_moved: list[Move] = field(default_factory=list)
    open: dict[str, Move] = field(default_factory=dict)
    asked: dict[str, Move] = field(default_factory=dict)
    opened_ms: int | None = None
    excess_ms: int = 0


def _fits(used: Iterable[Move], weight: int, units: int, devices: int) -> bool:
    """Whether one more of ``weight`` fits: as one of ``units`` moves, or into ``devices``.

    Two whole nodes may move at any site, whatever number of cards is in them.
    """
    weights = [w for _, w in used]
    return len(weights) < units or sum(weights) + weight <= devices


class Budget:
    """Asks are counted per site; the same asks in the same order get the same answers."""

    def __init__(self, policy: BudgetPolicy | None = None) -> None:
        self.policy = policy or BudgetPolicy()
        self._sites: dict[str, _Site] = {}

    def ask(
        self,
        site: str,
        device: str,
        at_ms: int,
        devices_known: int,
        *,
        weight: int = 1,
        lost: bool = False,
    ) -> Answer:
        """Whether ``device`` may be moved now; an allowed move is counted.

        A device whose move is still open is allowed again without being counted again. Demand
        past a limit opens the breaker, and while it is open nothing more is allowed, but moves
        off ``lost`` cards, which harm nobody: those have a window of their own.
        """
        state = self._sites.setdefault(site, _Site())
        transitions = self._advance(site, state, at_ms)
        if device in state.open:
            return Answer(True, None, transitions)
        if lost:
            reason = self._lost(state, weight, devices_known)
        else:
            reason = self._excess(state, device, weight, devices_known)
        if reason is not None:
            state.excess_ms = state.now_ms
            if state.opened_ms is None:
                state.opened_ms = state.now_ms
                transitions += (self._opened(site, state, reason, devices_known),)
            return Answer(False, reason, transitions)
        if lost:
            state.lost_moved.append((state.now_ms, weight))
            return Answer(True, None, transitions)
        if state.opened_ms is not None:
            return Answer(False, "breaker", transitions)
        self._moved(state, device, state.now_ms, weight)
        return Answer(True, None, transitions)

    def _moved(self, state: _Site, device: str, at_ms: int, weight: int) -> None:
        state.moved.append((at_ms, weight))
        state.open[device] = (at_ms, weight)

    def _lost(self, state: _Site, weight: int, devices_known: int) -> Reason | None:
        limit = self.policy.window_limit(devices_known)
        fits = _fits(state.lost_moved, weight, self.policy.window_devices, limit)
        return None if fits else "lost"

    def _excess(self, state: _Site, device: str, weight: int, known: int) -> Reason | None:
        policy = self.policy
        window_limit, open_limit = policy.window_limit(known), policy.open_limit(known)
        state.asked.pop(device, None)
        others = list(state.asked.values())
        demand_fits = _fits(others, weight, policy.window_devices, window_limit)
        state.asked[device] = (state.now_ms, weight)
        # One over the limit tells as much as all of them, and keeps the state small in a storm.
        while len(state.asked) > window_limit + 1:
            state.asked.pop(next(iter(state.asked)))
        if not demand_fits or not _fits(state.moved, weight, policy.window_devices, window_limit):
            return "window"
        waiting = [m for name, m in state.asked.items() if name not in state.open]
        waiting.remove((state.now_ms, weight))
        taken = [*state.open.values(), *waiting]
        return None if _fits(taken, weight, policy.open_devices, open_limit) else "open"

    def restore(self, site: str, device: str, at_ms: int, *, weight: int = 1) -> None:
        """Count a move again that was made before a restart; asks nothing, opens nothing."""
        state = self._sites.setdefault(site, _Site())
        self._moved(state, device, at_ms, weight)
        state.moved.sort()
        state.now_ms = max(state.now_ms, at_ms)

    def restore_breaker(self, site: str, opened_ms: int) -> None:
        """The breaker was open before a restart, and is."""
        state = self._sites.setdefault(site, _Site())
        state.opened_ms = opened_ms
        state.now_ms = state.excess_ms = max(state.now_ms, opened_ms)

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
        self._sites[site].asked.clear()  # else what waits would open it again at once
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
            "lost_moved": list(state.lost_moved),
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
            moved=[_move(m) for m in value["moved"]],
            lost_moved=[_move(m) for m in value["lost_moved"]],
            open={str(k): _move(m) for k, m in value["open"].items()},
            asked={str(k): _move(m) for k, m in value["asked"]},
            opened_ms=None if value["opened_ms"] is None else int(value["opened_ms"]),
            excess_ms=int(value["excess_ms"]),
        )

    def _advance(self, site: str, state: _Site, at_ms: int) -> tuple[Transition, ...]:
        state.now_ms = now = max(state.now_ms, at_ms)
        oldest = now - self.policy.window_ms
        state.moved = [m for m in state.moved if m[0] > oldest]
        state.lost_moved = [m for m in state.lost_moved if m[0] > oldest]
        state.asked = {name: m for name, m in state.asked.items() if m[0] > oldest}
        expired = now - self.policy.open_expires_ms
        state.open = {name: m for name, m in state.open.items() if m[0] > expired}
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
        elif reason == "lost":
            why = f"more than {limit} cards were lost within {minutes:g} minutes"
        return Transition(
            "breaker.opened",
            site,
            state.now_ms,
            {
                "site": site,
                "cause": reason,
                "limit": limit,
                "devices_known": devices_known,
                "moved_in_window": sum(w for _, w in state.moved),
                "open": sum(w for _, w in state.open.values()),
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

    def allows(
        self,
        site: str,
        node: str,
        device: str | None,
        at_ms: int,
        *,
        weight: int = 1,
        lost: bool = False,
    ) -> Reason | None:
        """Ask once; an allowed move (None) is counted, else why it is held."""
        answer = self.budget.ask(
            site,
            _name(node, device),
            at_ms,
            self._devices_known(site),
            weight=weight,
            lost=lost,
        )
        self._transitions += answer.transitions
        return answer.reason

    def restore(self, site: str, node: str, device: str | None, at_ms: int, weight: int) -> None:
        """Count a move again that was made before a restart."""
        self.budget.restore(site, _name(node, device), at_ms, weight=weight)

    def restore_breaker(self, site: str, opened_ms: int) -> None:
        """The breaker was open before a restart."""
        self.budget.restore_breaker(site, opened_ms)

    def forget(self) -> None:
        """The partitions were taken away; what they hold is restored by who gets them."""
        for site in self.budget.sites():
            self.budget.forget(site)

    def close(self, site: str, at_ms: int, by: str) -> bool:
        """Close a site's breaker by hand; False when it was not open."""
        was_open = self.budget.is_open(site)
        self._transitions += self.budget.close(site, at_ms, by)
        return was_open

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


def _move(value: Sequence[int]) -> Move:
    at_ms, weight = value
    return int(at_ms), int(weight)
