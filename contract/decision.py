"""Decisions and the webhook bodies made of them (contracts section 6)."""

from typing import Final, Literal, NotRequired, TypedDict

Cause = Literal["predicted", "threshold", "lost", "node_lost"]
CAUSES: Final[tuple[Cause, ...]] = ("predicted", "threshold", "lost", "node_lost")

WebhookType = Literal[
    "migration.requested",
    "migration.withdrawn",
    "device.quarantined",
    "device.released",
    "breaker.opened",
    "breaker.closed",
    "test.ping",
]


class Evidence(TypedDict):
    """One sensor's part in a decision; ``contribution`` is its share, 0–1."""

    sensor: str
    value: float | None
    baseline: float | None
    contribution: float


class MigrationData(TypedDict):
    """``data`` of ``migration.requested``. ``device`` is null for a whole node (``node_lost``)."""

    site: str
    node: str
    device: str | None
    episode_id: str
    decision_id: str
    cause: Cause
    risk: float
    risk_horizon_seconds: int
    health_score: float
    evidence: list[Evidence]
    observed_at: str
    decided_at: str
    reason: NotRequired[str]
