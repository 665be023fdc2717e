"""What the engine asks of a launcher, and what a launcher answers.

A launcher is all that another scheduler needs: ``launcher = "package.module:factory"`` names a
callable that takes the runner's settings and gives a :class:`Launcher`. It must

- find a process again by job, generation and rank alone (``recover``), also one whose start
  was cut off by a kill of the runner: the engine records a start before it asks for it;
- never have two of the same job and rank alive: a start that finds an older one waits or fails;
- let the process append to ``progress_file`` and keep ``checkpoint_dir`` where the next node
  sees it too: both are read as files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.placement import Place


@dataclass(frozen=True)
class Launch:
    """One process to start: rank ``rank`` of start ``generation`` of a job, at ``place``.

    ``job_dir`` belongs to the launcher; ``progress_file`` is where the process reports.
    """

    job_id: str
    job_dir: Path
    generation: int
    rank: int
    world_size: int
    place: Place
    command: Sequence[str]
    checkpoint_dir: Path
    progress_file: Path
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Exit:
    """How a process ended.

    ``returncode`` is negative for a signal and None when nobody saw the end. ``asked`` says
    that the end was asked for; ``error`` is why it could not even be started, ``refused`` that
    it was the machine's fault and may go well later.
    """

    returncode: int | None
    asked: bool
    error: str | None = None
    refused: bool = False


class Run(Protocol):
    """A process that was launched, by this runner or by the one before it. No call blocks."""

    def poll(self) -> Exit | None:
        """How it ended, None while it (or anything it started) still runs."""

    def stop(self) -> None:
        """Ask for a checkpoint and a clean end; killed when the grace is over. Repeatable."""

    def kill(self) -> None:
        """End it now. Repeatable."""


class Launcher(Protocol):
    """Starts processes, and finds those that an earlier runner started.

    ``outlives_runner``: whether processes go on while no runner is there. Where they do, the
    next runner goes on with them; else it waits for their end and starts them again.
    """

    outlives_runner: bool

    def start(self, launch: Launch) -> Run:
        """Start it.

        Raises:
            OSError: when the machine refuses; nothing runs then.
        """

    def recover(self, job_dir: Path, generation: int, rank: int) -> Run:
        """A process that may have been started before this runner's life."""

    def log_text(self, job_dir: Path, rank: int, limit_bytes: int) -> str:
        """The end of what the processes of that rank wrote, also after they ended."""


class NotStarted:
    """Stands for a process that the machine refused to make."""

    def __init__(self, error: str) -> None:
        self._exit = Exit(None, asked=False, error=error, refused=True)

    def poll(self) -> Exit:
        """The refusal."""
        return self._exit

    def stop(self) -> None:
        """Nothing runs."""

    def kill(self) -> None:
        """Nothing runs."""
