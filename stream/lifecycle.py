"""The states of a card, and the one table of what may follow what."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from stream.state import DeviceState

LifeState = Literal["healthy", "suspect", "quarantined", "probation", "retired"]
STATES: Final[tuple[LifeState, ...]] = get_args(LifeState)

MOVES: Final[Mapping[LifeState, Mapping[LifeState, str]]] = {
    "healthy": {
        "suspect": "a sign that moves nothing yet: dry run, silence, or the budget holds it",
        "quarantined": "a sign whose move was asked for, or a person",
        "retired": "a person",
    },
    "suspect": {
        "healthy": "no sign for calm_minutes",
        "quarantined": "the move was asked for, or a person",
        "retired": "a person",
    },
    "quarantined": {
        "probation": "no sign for calm_minutes while seen (unless a repeat offender), or a person",
        "retired": "a person",
    },
    "probation": {
        "healthy": "probation_load_minutes under load without a sign, or a person",
        "quarantined": "a sign, or a person",
        "retired": "a person",
    },
    "retired": {"probation": "a person"},
}
"""From → to → what makes it so. Every state is left by evidence, by time, or by a person; a card
that is not seen for ``absent_days`` is forgotten in whatever state it is."""


def move(device: DeviceState, to: LifeState, at_ms: int) -> None:
    """Take a card to another state.

    Raises:
        ValueError: when the table does not have it.
    """
    if device.state == to:
        return
    if to not in MOVES.get(device.state, {}):  # type: ignore[call-overload]
        raise ValueError(f"no card goes from {device.state} to {to}")
    device.state, device.state_ms, device.load_minutes = to, at_ms, 0
