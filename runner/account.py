"""How much of a job's time was spent on steps that were kept. Pure.

Time is counted from report to report, never for a start-up; steps that a later start had to
do again are taken off the earlier one, in proportion.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from runner.progress import Point

MAX_SPANS: Final = 16
"""Stretches that can still lose steps; older ones are settled, so that a record stays small."""


@dataclass(frozen=True)
class Span:
    """Reports of growing steps from one start: from its first report to its last."""

    generation: int
    first_step: int
    first_ms: int
    last_step: int
    last_ms: int

    @property
    def steps_per_second(self) -> float | None:
        """None before a second report."""
        elapsed_ms = self.last_ms - self.first_ms
        if elapsed_ms <= 0:
            return None
        return (self.last_step - self.first_step) * 1000 / elapsed_ms

    def before(self, step: int) -> "Span | None":
        """What is left when everything from ``step`` on is done again; None: nothing."""
        if step > self.last_step:
            return self
        last = step - 1
        if last <= self.first_step:
            return None
        share = (last - self.first_step) / (self.last_step - self.first_step)
        return replace(
            self,
            last_step=last,
            last_ms=self.first_ms + round(share * (self.last_ms - self.first_ms)),
        )


@dataclass(frozen=True)
class Account:
    """A job's kept time: ``settled_ms`` of old stretches, and the newest ones."""

    settled_ms: int = 0
    spans: tuple[Span, ...] = ()

    @property
    def kept_ms(self) -> int:
        """Wall time in milliseconds that went into steps which still count."""
        return self.settled_ms + sum(span.last_ms - span.first_ms for span in self.spans)

    def steps_per_second(self, generation: int) -> float | None:
        """Throughput of a start since its first report (or since it last went back)."""
        if not self.spans or self.spans[-1].generation != generation:
            return None
        return self.spans[-1].steps_per_second

    def goodput(self, started_ms: int | None, until_ms: int) -> float | None:
        """Kept time as a share (0–1) of the wall time since the first start; None before it."""
        if started_ms is None or until_ms <= started_ms:
            return None
        return min(self.kept_ms / (until_ms - started_ms), 1.0)

    def add(self, points: Iterable[Point]) -> "Account":
        """The account after further reports, in the order in which they were written."""
        settled, spans = self.settled_ms, list(self.spans)
        for point in points:
            last = spans[-1] if spans else None
            goes_on = last is not None and last.generation == point.generation
            if last is not None and goes_on and point.step > last.last_step:
                at_ms = max(point.at_ms, last.last_ms)
                spans[-1] = replace(last, last_step=point.step, last_ms=at_ms)
                continue
            if last is not None and goes_on and point.step == last.last_step:
                continue
            left = (span.before(point.step) for span in spans)
            spans = [span for span in left if span is not None]
            at_ms = max(point.at_ms, last.last_ms) if last is not None and goes_on else point.at_ms
            spans.append(Span(point.generation, point.step, at_ms, point.step, at_ms))
            while len(spans) > MAX_SPANS:
                old = spans.pop(0)
                settled += old.last_ms - old.first_ms
        return Account(settled, tuple(spans))


def account_from(value: dict[str, Any]) -> Account:
    """The account that a record holds."""
    return Account(value["settled_ms"], tuple(Span(**span) for span in value["spans"]))
