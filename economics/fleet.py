"""The question as numbers: a fleet, its failures, a job on it, and a predictor."""

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from contract.errors import ConfigError

DAY_SECONDS: Final = 86_400.0
MONTH_DAYS: Final = 365.25 / 12


@dataclass(frozen=True, slots=True)
class Fleet:
    """Cards, the job that runs on ``world`` of them, and what a failure does to it.

    Failures come at ``failures_per_device_month``; 0.0045 is what two public records agree on
    (Titan 0.0053, InfiniteHBD 0.0043), Titan's old batch had 0.0068. ``bad_share`` of the cards
    fail ``bad_factor`` times as often: a bad batch (Titan: fifteen times). Repairs are lognormal;
    the defaults are InfiniteHBD's median of 0.85 days and nine tenths within 13.
    """

    cards: int = 64
    world: int = 32
    days: float = 365.0
    failures_per_device_month: float = 0.0045
    bad_share: float = 0.0
    bad_factor: float = 15.0
    repair_days_median: float = 0.85
    repair_days_p90: float = 13.0
    checkpoint_interval_seconds: float = 1800.0
    checkpoint_seconds: float = 20.0
    restart_seconds: float = 180.0
    """From a failure that was not foreseen to the first step again, detection included."""
    move_seconds: float = 60.0
    """What a planned move costs: a checkpoint, a stop, a start elsewhere."""
    recall: float = 0.0
    """Share of the failures that are foreseen in time for a move."""
    false_alarms_per_device_day: float = 0.0
    quarantine_hours: float = 6.0
    """How long a card that was moved off for nothing is out of service."""
    samples_per_card_second: float = 100.0
    price_per_card_hour: float = 0.12

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise ConfigError(f"{field.name} = {value}: 0 or more")
        for name in ("cards", "world", "days", "checkpoint_interval_seconds", "repair_days_median"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: more than 0")
        for name in ("bad_share", "recall"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: a share, 1 at most")
        if self.world > self.cards:
            raise ConfigError(f"world = {self.world}: the fleet has {self.cards} cards")
        if self.repair_days_p90 < self.repair_days_median:
            raise ConfigError(
                f"repair_days_p90 = {self.repair_days_p90}: not under the median of "
                f"{self.repair_days_median}"
            )

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From a table of numbers.

        Raises:
            ConfigError: naming what is unknown or out of range.
        """
        known = {field.name: field.type for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{name}: no such number; one of {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{name} = {value!r}: a number")
        for name in ("cards", "world"):
            if name in values and values[name] != int(values[name]):
                raise ConfigError(f"{name} = {values[name]}: a whole number")
        return cls(**values)

    @property
    def failures_per_card_second(self) -> float:
        """Mean over the batches."""
        rate = self.failures_per_device_month / (MONTH_DAYS * DAY_SECONDS)
        return rate * (1 + self.bad_share * (self.bad_factor - 1))

    def without_predictor(self) -> Self:
        """The same fleet that foresees nothing."""
        return replace(self, recall=0.0, false_alarms_per_device_day=0.0)
