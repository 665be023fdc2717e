"""What a trainer writes about its progress, read and thinned. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from runner.times import from_rfc3339

T = TypeVar("T")
MAX_LOSS: Final = 1e300
"""Beyond it (NaN included) a loss is not a number worth a plot."""


@dataclass(frozen=True)
class Point:
    """One reported step; ``loss`` is None when it was not reported or not finite."""

    at_ms: int
    step: int
    loss: float | None
    node: str | None
    device: str | None
    generation: int


def parse(
    line: bytes, *, now_ms: int, node: str, device: str | None, generation: int
) -> Point | None:
    """A line of a progress file, or None when it is not one.

    Only ``step`` is needed. ``at`` is RFC 3339 or Unix seconds; without it, it is ``now_ms``.
    Where the job stands is what the runner says, whatever the line claims.
    """
    try:
        value: Any = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    step = value.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**53:
        return None
    return Point(
        at_ms=_at(value.get("at"), now_ms),
        step=step,
        loss=_loss(value.get("loss")),
        node=node,
        device=device,
        generation=generation,
    )


def _loss(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and abs(value) < MAX_LOSS else None


def _at(value: Any, now_ms: int) -> int:
    if isinstance(value, str):
        try:
            return from_rfc3339(value)
        except ValueError:
            return now_ms
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e11:
        return round(value * 1000)
    return now_ms


def thin(points: Sequence[T], limit: int, group: Callable[[T], object]) -> list[T]:
    """At most ``limit`` (≥ 2) of the points, in order, evenly, with the edges of each group.

    The first and last point of every group of neighbours stay, so that a move shows where it
    was; when the edges alone are too many, the newest ``limit`` of them stay.
    """
    if len(points) <= limit:
        return list(points)
    edges = {0, len(points) - 1}
    for i in range(1, len(points)):
        if group(points[i]) != group(points[i - 1]):
            edges |= {i - 1, i}
    if len(edges) >= limit:
        return [points[i] for i in sorted(edges)[-limit:]]
    inner = [i for i in range(len(points)) if i not in edges]
    room = limit - len(edges)
    kept = {inner[i * len(inner) // room] for i in range(room)}
    return [points[i] for i in sorted(edges | kept)]
