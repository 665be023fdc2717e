"""When a sign becomes an alarm: limits, hysteresis, budgets. Values only.

The risk threshold belongs to the model (chosen on validation data for a false-alarm budget); the
limits below are physical and come with their sources.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

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
class Policy:
    """All numbers of the decision."""

    raise_scorings: int = 2
    of_scorings: int = 3
    clear_ratio: float = 0.6
    calm_minutes: int = 240
    """Minutes without any sign after which an episode is closed and the device released."""
    limits: Limits = field(default_factory=Limits)
    node_silent_seconds: float = 60.0
    node_offline_seconds: float = 15.0
    node_silent_received_seconds: float = 10.0
    node_offline_received_seconds: float = 5.0
    """Silence must also have lasted this long by the receiver's clock: a replay at high speed
    or a stalled bridge makes event time jump, which is not silence."""


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
        cls, policy: Policy, raised: bool = False, recent: Iterable[float] = ()
    ) -> "RiskHysteresis":
        """With the numbers of ``policy`` and a remembered state."""
        return cls(
            policy.raise_scorings, policy.of_scorings, policy.clear_ratio, raised, deque(recent)
        )


def health_score(risk: float, threshold: float) -> float:
    """0–100, falling as the risk rises; 60 exactly where the risk reaches the threshold."""
    if risk < threshold:
        return 100.0 - (100.0 - HEALTH_UNHEALTHY) * risk / threshold
    return HEALTH_UNHEALTHY * (1.0 - risk) / (1.0 - threshold) if threshold < 1.0 else 0.0
