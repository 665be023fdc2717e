"""How a part is started."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ChildSpec:
    """How one part is started.

    ``ready`` is asked until it says true; it returns false rather than raise while the part
    is not up. ``restart`` says that a crash is answered with a new start, ``may_end`` that
    the part has done its work when it ends with exit code 0.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], Awaitable[bool]] | None = None
    ready_seconds: float = 60.0
    stop_seconds: float = 8.0
    restart: bool = False
    may_end: bool = False


def rigcanary_argv(command: str, options: Mapping[str, object]) -> tuple[str, ...]:
    """Command line that runs ``rigcanary COMMAND`` with this interpreter and ``options``."""
    spelt = (text for name, value in options.items() for text in (name, str(value)))
    return (sys.executable, "-m", "rigcanary", command, *spelt)
