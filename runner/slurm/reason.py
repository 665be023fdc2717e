"""The reason of a drained node: whose it is, and which cards it stands for.

Slurm keeps it over restarts of everything, so it is the only state of the actuator.
"""

import re
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "rigcanary:"
"""Owner's mark: only what begins so is ever changed or undone."""
WHOLE_NODE: Final = "node"
QUARANTINED: Final = "quarantined"
MANUAL: Final = "manual"
LASTING: Final = frozenset({QUARANTINED, MANUAL})
"""Marks that end with the card's release, not with the withdrawal of a move."""
MAX_MARKS: Final = 64
_MARK: Final = re.compile(r"(\S+?)\((\w+)\)")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:/-]")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """One card (or the whole node) and why it is out."""

    card: str
    why: str

    @classmethod
    def of(cls, device: str | None, why: str) -> "Mark":
        """A mark whose text is safe in a reason; ``device`` None is the whole node."""
        card = WHOLE_NODE if device is None else _UNSAFE.sub("_", device)[:128]
        return cls(card, re.sub(r"\W", "_", why)[:32])


def ours(reason: str) -> bool:
    """Whether the reason is this actuator's."""
    return reason.startswith(PREFIX)


def read(reason: str) -> set[Mark]:
    """Marks of a reason of ours; none of anybody else's."""
    if not ours(reason):
        return set()
    return {Mark(card, why) for card, why in _MARK.findall(reason.removeprefix(PREFIX))}


def write(marks: set[Mark]) -> str:
    """The reason that :func:`read` reads; of very many cards the first stand for all."""
    shown = sorted(marks)[:MAX_MARKS]
    return " ".join([PREFIX, *(f"{mark.card}({mark.why})" for mark in shown)])
