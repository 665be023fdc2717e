"""What the decider asks, and what it is told of a card: two small types."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from stream.budget import Reason, Transition


class Gate(Protocol):
    """Whether one more card of a site may be moved now (``stream.budget``)."""

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

    def restore(self, site: str, node: str, device: str | None, at_ms: int, weight: int) -> None:
        """Count a move again that was made before a restart."""

    def restore_breaker(self, site: str, opened_ms: int) -> None:
        """The breaker was open before a restart."""

    def forget(self) -> None:
        """The partitions were taken away."""

    def ended(self, site: str, node: str, device: str | None, at_ms: int) -> None:
        """The episode is over: the move does not count as open any more."""

    def advance(self, sites: Iterable[str], at_ms: int) -> None:
        """Let event time pass at these sites: the breaker closes by calm."""

    def close(self, site: str, at_ms: int, by: str) -> bool:
        """Close a site's breaker by hand; False when it was not open."""

    def take(self) -> list[Transition]:
        """What the breaker did since the last call."""


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """One device's scoring: risks within 15, 60 and 240 minutes, or None without enough data.

    ``loaded`` says whether the card worked in the newest minute, ``temperature_celsius`` is that
    minute's mean; None where the card does not report it.
    """

    device: str
    completeness: float
    risk_15m: float | None
    risk_60m: float | None
    risk_240m: float | None
    loaded: bool | None = None
    temperature_celsius: float | None = None

    @property
    def deciding(self) -> float | None:
        """The risk that the model's thresholds are for (``record.HORIZON_SECONDS``)."""
        return self.risk_240m
