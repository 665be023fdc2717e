"""What a check has to say."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a thing was found. Only ``FAIL`` makes the command fail."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    """It could not be seen: no tool, no driver, no permission, or no answer in time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table.

    ``device`` is the card's id as in telemetry (its PCI address where it has no other), None for
    the rig itself. ``found`` and ``wanted`` are short; ``reason`` says why it matters or why it
    is not known; ``fix`` is the next step, and says so where it needs root.
    """

    name: str
    device: str | None
    status: Status
    found: str
    wanted: str = ""
    reason: str = ""
    fix: str = ""


def count(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings have each status."""
    totals = {str(status): 0 for status in Status}
    for finding in findings:
        totals[str(finding.status)] += 1
    return totals
