"""What the demo knows of the run: Kafka records and the runner's answers, taken together.

Pure: values in, values out. Everything is an upsert, so records that come twice, or again
from the start after Kafka was started afresh, change nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

UNHEALTHY_SCORE: Final = 60.0
"""Health scores under this are unhealthy (contracts section 6)."""

SERIES: Final = (
    "temperature_celsius_mean",
    "memory_temperature_celsius_mean",
    "vrm_ripple_volts_mean",
    "vrm_voltage_volts_mean",
    "fan_speed_rpm_mean",
    "fan_duty_ratio_mean",
    "fan_vibration_g_mean",
    "power_watts_mean",
    "utilization_ratio_mean",
    "ecc_corrected_total_increase",
    "ecc_uncorrected_total_increase",
)
"""Columns of a minute row that the report may draw."""

_FINISHED: Final = frozenset({"completed", "failed", "withdrawn"})


def rfc3339(unix_seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC."""
    text = datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def unix_seconds(text: str) -> float:
    """Unix seconds of an RFC 3339 time stamp."""
    return datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True)
class Risk:
    """One scoring of a card; ``at`` is the end of its newest minute, Unix seconds."""

    at: int
    risk_15m: float | None
    risk_60m: float | None
    risk_240m: float | None
    health_score: float | None
    completeness: float


@dataclass(frozen=True)
class Decision:
    """One decision; ``at`` is event time, Unix seconds; ``device`` None means the whole node."""

    decision_id: str
    type: str
    dry_run: bool
    at: float
    node: str
    device: str | None
    cause: str | None
    risk: float | None
    health_score: float | None
    evidence: tuple[Mapping[str, Any], ...]


@dataclass
class Card:
    """One card and its history, keyed by minute (Unix seconds of its start, or end for risks)."""

    device: str
    node: str
    index: int
    minutes: dict[int, dict[str, float | None]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    risks: dict[int, Risk] = field(default_factory=dict)

    @property
    def risk(self) -> Risk | None:
        """The newest scoring."""
        return self.risks[max(self.risks)] if self.risks else None

    @property
    def state(self) -> str | None:
        """``ok``, ``lost`` or ``unresponsive`` in the newest minute; None before the first."""
        return self.states[max(self.states)] if self.states else None


@dataclass
class Facts:
    """The demo's knowledge. ``job`` and ``migrations`` are as the runner's HTTP gives them."""

    cards: dict[str, Card]
    decisions: dict[str, Decision] = field(default_factory=dict)
    threshold: float | None = None
    model_version: str = ""
    job: dict[str, Any] | None = None
    progress: list[dict[str, Any]] = field(default_factory=list)
    migrations: list[dict[str, Any]] = field(default_factory=list)
    newest_minute: int | None = None

    @classmethod
    def of(cls, devices: Iterable[tuple[str, str, int]]) -> "Facts":
        """Nothing known yet of ``devices`` (device, node, index)."""
        return cls({device: Card(device, node, index) for device, node, index in devices})

    def on_minute(self, value: Mapping[str, Any]) -> None:
        """Take a record of ``rigcanary.minutes``."""
        minute = int(value["minute"])
        self.newest_minute = max(minute, self.newest_minute or minute)
        for row in value["devices"]:
            card = self.cards.get(row["device"])
            if card is None:
                continue
            card.minutes[minute] = {name: _number(row.get(name)) for name in SERIES}
            bad = [s for s in ("lost", "unresponsive") if row.get(f"samples_{s}")]
            card.states[minute] = bad[0] if bad and not row.get("samples_ok") else "ok"

    def on_risks(self, value: Mapping[str, Any]) -> None:
        """Take a record of ``rigcanary.risks``."""
        at = int(value["minute"]) + 60
        self.model_version = str(value.get("model_version", ""))
        self.threshold = _number(value.get("threshold"))
        for row in value["devices"]:
            card = self.cards.get(row["device"])
            if card is not None:
                card.risks[at] = Risk(
                    at,
                    _number(row.get("risk_15m")),
                    _number(row.get("risk_60m")),
                    _number(row.get("risk_240m")),
                    _number(row.get("health_score")),
                    _number(row.get("completeness")) or 0.0,
                )

    def on_decision(self, value: Mapping[str, Any]) -> None:
        """Take a record of ``rigcanary.decisions``."""
        data = value["data"]
        self.decisions[value["decision_id"]] = Decision(
            decision_id=value["decision_id"],
            type=value["type"],
            dry_run=bool(value.get("dry_run")),
            at=unix_seconds(data["decided_at"]),
            node=str(data.get("node", "")),
            device=data.get("device"),
            cause=data.get("cause"),
            risk=_number(data.get("risk")),
            health_score=_number(data.get("health_score")),
            evidence=tuple(data.get("evidence") or ()),
        )

    def requests(self) -> list[Decision]:
        """Requests to move that were sent, oldest first."""
        found = [
            d for d in self.decisions.values() if d.type == "migration.requested" and not d.dry_run
        ]
        return sorted(found, key=lambda d: (d.at, d.decision_id))

    def request_for(self, device: str) -> Decision | None:
        """The first request to leave ``device``."""
        return next((d for d in self.requests() if d.device == device), None)

    def asked_to_leave(self) -> frozenset[str]:
        """Cards with a request that was not taken back or ended since."""
        open_cards: set[str] = set()
        for decision in sorted(self.decisions.values(), key=lambda d: (d.at, d.type)):
            if decision.device is None or decision.dry_run:
                continue
            if decision.type == "migration.requested":
                open_cards.add(decision.device)
            elif decision.type in {"migration.withdrawn", "device.released"}:
                open_cards.discard(decision.device)
        return frozenset(open_cards)

    def moves(self) -> list[dict[str, Any]]:
        """Migrations that moved (or move) a job, oldest first."""
        moved = [m for m in self.migrations if m.get("job") is not None]
        return sorted(moved, key=lambda m: str(m["requested_at"]))

    def counted_to(self) -> int | None:
        """The minute that the slowest node's rows have reached; None before any."""
        newest: dict[str, int] = {}
        for card in self.cards.values():
            if card.minutes:
                newest[card.node] = max(newest.get(card.node, 0), *card.minutes)
        return min(newest.values(), default=None)

    def unfinished(self) -> int:
        """Migrations that are still on their way."""
        return sum(m["state"] not in _FINISHED for m in self.migrations)

    def riskiest(self, count: int) -> list[Card]:
        """The cards with the highest risk within 240 minutes, the one that decides."""
        scored = [
            (c.risk.risk_240m, c.device)
            for c in self.cards.values()
            if c.risk is not None and c.risk.risk_240m is not None
        ]
        return [self.cards[device] for _, device in sorted(scored, reverse=True)[:count]]


def losses(progress: Sequence[Mapping[str, Any]]) -> list[tuple[float, int, float, int]]:
    """(wall time, step, loss, generation) of the reported steps that have a loss."""
    return [
        (unix_seconds(str(p["at"])), int(p["step"]), float(p["loss"]), int(p["generation"]))
        for p in progress
        if p.get("loss") is not None and p.get("at")
    ]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
