"""What a decision means for Slurm. Each step looks at Slurm first, so it can be repeated."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from runner.slurm import reason as reasons
from runner.slurm.reason import LASTING, QUARANTINED, Mark

log = logging.getLogger("rigcanary.slurm")

DRAINED: Final = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL"})
"""Flags of a node that takes no job."""
MAX_WAITING: Final = 1_000
"""Requeued jobs whose start is hastened; of more, the oldest wait Slurm's two minutes."""
START_TRIES: Final = 120
"""A job gets KillWait (30 s by default) to end; one that takes longer waits two minutes more."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as ``scontrol show node`` has it."""

    flags: frozenset[str]
    reason: str

    @property
    def closed(self) -> bool:
        """Whether it takes no job."""
        return bool(self.flags & DRAINED)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job on a node."""

    id: str
    may_requeue: bool


class Slurm(Protocol):
    """Slurm's commands; each raises SlurmAway when the controller does not answer."""

    def node(self, name: str) -> Node | None:
        """A node, None when Slurm knows no such node."""

    def drain(self, name: str, reason: str) -> None:
        """Give a node no more jobs, or change the reason of one that has none."""

    def resume(self, name: str) -> None:
        """Give a drained node jobs again."""

    def jobs_on(self, name: str) -> list[SlurmJob]:
        """Running jobs."""

    def requeue(self, job_id: str) -> bool:
        """Stop a job and queue it again; False when it had already ended."""

    def start_now(self, job_ids: Sequence[str]) -> set[str]:
        """Of requeued jobs, start those that wait; returns those that need no more asking."""


class Actuator:
    """Carries out decisions; ``count`` gets the name of each action that changed something."""

    def __init__(self, slurm: Slurm, count: Callable[[str], None], *, requeue: bool) -> None:
        self._slurm = slurm
        self._count = count
        self._requeue = requeue
        self._waiting: deque[tuple[str, int]] = deque(maxlen=MAX_WAITING)

    def close(self, name: str, device: str | None, why: str) -> str:
        """Drain the node for a card, then requeue its jobs. Returns what became of it.

        Raises:
            SlurmAway: when Slurm does not answer; what was done stays and is found done next time.
        """
        node = self._slurm.node(name)
        if node is None:
            self._count("unknown_node")
            log.warning("Slurm has no node %s; map its name with --node %s=SLURMNAME", name, name)
            return "unknown node"
        if node.closed and node.reason and not reasons.ours(node.reason):
            self._count("foreign_reason")
            log.info("%s is closed by another (%s): its reason stays", name, node.reason)
        else:
            marks = reasons.read(node.reason) if node.closed else set()
            wanted = marks | {Mark.of(device, why)}
            if not node.closed or wanted != marks:
                self._slurm.drain(name, reasons.write(wanted))
                self._count("drain")
                log.info("%s drained: %s", name, reasons.write(wanted))
        # Drained first: else the job might come back to the same node.
        if self._requeue and why != QUARANTINED:
            self._requeue_jobs(name)
        return "drained"

    def _requeue_jobs(self, name: str) -> None:
        for job in self._slurm.jobs_on(name):
            if not job.may_requeue:
                self._count("job_left")
                log.warning(
                    "job %s on %s runs on: it was submitted without --requeue", job.id, name
                )
            elif self._slurm.requeue(job.id):
                self._count("requeue")
                log.info("job %s requeued off %s", job.id, name)
                self._waiting.append((job.id, START_TRIES))

    def start_requeued(self) -> None:
        """Spare requeued jobs the two minutes that Slurm lets each wait; call it every second.

        Raises:
            SlurmAway: the jobs are asked for again next time.
        """
        if not self._waiting:
            return
        done = self._slurm.start_now([job_id for job_id, _ in self._waiting])
        for _ in range(len(self._waiting)):
            job_id, tries = self._waiting.popleft()
            if job_id not in done and tries > 1:
                self._waiting.append((job_id, tries - 1))

    def withdraw(self, name: str, device: str | None) -> str:
        """A request to move was taken back: undo its mark; a quarantine stays."""
        card = Mark.of(device, "").card
        return self._undo(name, lambda m: m.card == card and m.why not in LASTING)

    def release(self, name: str, device: str | None) -> str:
        """A card takes jobs again: undo all its marks; of a whole node (None) every mark."""
        card = Mark.of(device, "").card
        return self._undo(name, lambda m: device is None or m.card == card)

    def _undo(self, name: str, undone: Callable[[Mark], bool]) -> str:
        node = self._slurm.node(name)
        if node is None:
            self._count("unknown_node")
            return "unknown node"
        if not node.closed or not reasons.ours(node.reason):
            return "not ours"
        marks = reasons.read(node.reason)
        left = {mark for mark in marks if not undone(mark)}
        if not left:
            self._slurm.resume(name)
            self._count("resume")
            log.info("%s resumed", name)
            return "resumed"
        if left != marks:
            self._slurm.drain(name, reasons.write(left))
            self._count("drain")
        return "others left"
