"""When a sign becomes an alarm: limits, hysteresis, budgets. Values only.

The risk threshold belongs to the model (chosen on validation data for a false-alarm budget); the
limits below are physical and come with their sources.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from stream.budget import BudgetPolicy

HEALTH_UNHEALTHY: Final = 60.0
"""Health score under which a card counts as unhealthy (contracts section 6)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits past which a card is moved at once, and for how many samples they must hold."""

    temperature_celsius: float = 97.0
    """GTX 1070 Ti and RTX 3090 slow down at 94 and 93 °C (vendor specifications): past 97 °C the
    card's own protection has failed to hold it."""
    temperature_samples: int = 3
    runaway_celsius_per_second: float = 0.5
    runaway_floor_celsius: float = 85.0
    runaway_samples: int = 6
    """Half a degree a second for 30 s above 85 °C reaches shutdown within the minute."""
    ripple_volts: float = 0.30
    """ATX12V 2.x allows 0.12 V peak to peak on the 12 V rail; two and a half times that."""
    ripple_samples: int = 6
    fan_stopped_rpm: float = 100.0
    fan_stopped_duty_ratio: float = 0.3
    fan_stopped_utilization_ratio: float = 0.5
    fan_stopped_samples: int = 3
    lost_samples: int = 2
    unresponsive_samples: int = 12


FATAL_XIDS: Final = {
    48: "double bit ECC error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP RPC timeout",
    120: "GSP error",
}
"""Xid codes after which NVIDIA's catalogue asks for a reset or a new card."""


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """What one kind of card has of its own: limits, and k of n with its hysteresis."""

    limits: Limits = field(default_factory=Limits)
    raise_scorings: int = 2
    of_scorings: int = 3
    clear_ratio: float = 0.6


@dataclass(frozen=True, slots=True)
class Silence:
    """Signs of these devices move nothing in ``[from_ms, until_ms)``; ``*`` and ``?`` match."""

    from_ms: int
    until_ms: int
    site: str = "*"
    node: str = "*"
    device: str = "*"
    reason: str = ""

    def covers(self, site: str, node: str, device: str | None, at_ms: int) -> bool:
        """Whether a sign of this device at this instant is silenced.

        A whole node (``device`` None) is silenced only by a silence of all its devices.
        """
        return (
            self.from_ms <= at_ms < self.until_ms
            and fnmatchcase(site, self.site)
            and fnmatchcase(node, self.node)
            and (self.device == "*" if device is None else fnmatchcase(device, self.device))
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """All numbers of the decision; ``stream/policy_default.toml`` says where they come from."""

    raise_scorings: int = 2
    of_scorings: int = 3
    clear_ratio: float = 0.6
    calm_minutes: int = 240
    """Minutes without any sign after which a card leaves quarantine."""
    probation_load_minutes: int = 60
    """Minutes under load without a sign that end probation."""
    load_utilization_ratio: float = 0.5
    load_power_watts: float = 75.0
    """Load of a card that does not report its utilisation."""
    serves_on_probation: tuple[str, ...] = ("predicted",)
    """Causes after which a card takes jobs again while on probation."""
    repeat_episodes: int = 3
    repeat_days: int = 30
    absent_days: int = 30
    limits: Limits = field(default_factory=Limits)
    models: Mapping[str, ModelPolicy] = field(default_factory=dict)
    """By card model, in lower case; a card whose model is not here has the general numbers."""
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)
    dry_run_sites: frozenset[str] = frozenset()
    silences: tuple[Silence, ...] = ()
    node_silent_seconds: float = 60.0
    node_offline_seconds: float = 15.0
    node_silent_received_seconds: float = 10.0
    node_offline_received_seconds: float = 5.0
    """Silence must also have lasted this long by the receiver's clock: a replay at high speed
    or a stalled bridge makes event time jump, which is not silence."""

    def limits_of(self, model: str | None) -> Limits:
        """The limits of a card of this model."""
        own = self.models.get(model.lower()) if model is not None else None
        return self.limits if own is None else own.limits

    def limits_for(self, models: Iterable[str | None]) -> "Limits | tuple[Limits, ...]":
        """The limits of a node's cards: one for all, or one for each where they differ."""
        found = tuple(map(self.limits_of, models))
        return found[0] if len(set(map(id, found))) == 1 else found

    def silenced(self, site: str, node: str, device: str | None, at_ms: int) -> Silence | None:
        """The maintenance window or silence that covers this moment, if any."""
        for silence in self.silences:
            if silence.covers(site, node, device, at_ms):
                return silence
        return None


def with_limits(policy: Policy, changed: Mapping[str, Any]) -> Policy:
    """The policy with these limits for every card, whatever its model."""
    if not changed:
        return policy
    models = {
        name: replace(own, limits=replace(own.limits, **changed))
        for name, own in policy.models.items()
    }
    return replace(policy, limits=replace(policy.limits, **changed), models=models)


@dataclass(slots=True)
class RiskHysteresis:
    """Raised when ``raise_scorings`` of the last ``of_scorings`` risks reach the threshold.

    Once raised it stays so until all of the last ``of_scorings`` are under
    ``clear_ratio`` × threshold.
    """

    raise_scorings: int = 2
    of_scorings: int = 3
    clear_ratio: float = 0.6
    raised: bool = False
    recent: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if not 1 <= self.raise_scorings <= self.of_scorings:
            raise ValueError("1 ≤ raise_scorings ≤ of_scorings is needed")
        self.recent = deque(self.recent, maxlen=self.of_scorings)

    def update(self, risk: float, threshold: float) -> bool:
        """Take one scoring in; return whether the alarm is raised after it."""
        self.recent.append(risk)
        if not self.raised:
            self.raised = sum(r >= threshold for r in self.recent) >= self.raise_scorings
        elif len(self.recent) == self.of_scorings:
            self.raised = any(r >= threshold * self.clear_ratio for r in self.recent)
        return self.raised

    @classmethod
    def of(
        cls,
        policy: Policy,
        raised: bool = False,
        recent: Iterable[float] = (),
        model: str | None = None,
    ) -> "RiskHysteresis":
        """With the numbers of ``policy`` for this card model and a remembered state."""
        own = policy.models.get(model.lower()) if model is not None else None
        of = policy if own is None else own
        return cls(of.raise_scorings, of.of_scorings, of.clear_ratio, raised, deque(recent))

    @property
    def effective(self) -> float:
        """The k-th largest of the last n risks: at the threshold exactly where it is raised."""
        if len(self.recent) < self.raise_scorings:
            return min(self.recent, default=0.0)
        return sorted(self.recent, reverse=True)[self.raise_scorings - 1]


def health_score(risk: float, threshold: float) -> float:
    """0–100, falling as the risk rises; 60 exactly where the risk reaches the threshold."""
    if risk < threshold:
        return 100.0 - (100.0 - HEALTH_UNHEALTHY) * risk / threshold
    return HEALTH_UNHEALTHY * (1.0 - risk) / (1.0 - threshold) if threshold < 1.0 else 0.0
