"""One generation of workers: from their start until they are done or one of them fails."""

import logging
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from runner.trainer.account import Account
from runner.trainer.crew import Worker
from runner.trainer.manager import CheckpointManager, Committed, Written
from runner.trainer.plan import RunSettings

log = logging.getLogger("rigcanary.trainer")
TICK_SECONDS: Final = 0.1
TROUBLES: Final = ("lost", "defect", "refused")
LEAVE_SECONDS: Final = 10.0
"""For workers to end after they were told to."""


@dataclass(frozen=True)
class Ended:
    """How a generation ended. ``ranks`` are those whose fault it seems; ``defect`` is the
    program's own error, which starting again will hardly mend; ``refused`` one that it cannot.
    """

    kind: Literal["done", "left", "failed", "refused"]
    why: str = ""
    ranks: tuple[int, ...] = ()
    defect: bool = False


class Generation:
    """Watches the workers, commits what they saved, and passes orders on."""

    def __init__(
        self,
        number: int,
        workers: list[Worker],
        settings: RunSettings,
        manager: CheckpointManager,
        account: Account,
        on_step: Callable[[int, float | None], None],
    ) -> None:
        self._number = number
        self._workers = workers
        self._settings = settings
        self._manager = manager
        self._account = account
        self._on_step = on_step
        self._begun = self._moved_at = time.monotonic()
        self._leaving = self._abandoned = False
        self._final_step: int | None = None
        self.committed: Committed | None = None
        self.first_step_at: float | None = None
        self.first_commit_at: float | None = None

    def ask(self, order: Literal["checkpoint", "leave"]) -> None:
        """Ask all for a checkpoint at the next boundary, and then to go on or to leave."""
        self._leaving = self._leaving or order == "leave"
        for worker in self._workers:
            worker.order(order)

    def abandon(self) -> None:
        """End it as it is."""
        self._abandoned = True

    def run(self, on_tick: Callable[["Generation"], None]) -> Ended:
        """Until its end. All workers are gone when this returns."""
        selector = selectors.DefaultSelector()
        for worker in self._workers:
            selector.register(worker.connection, selectors.EVENT_READ, worker)
        ended: Ended | None = None
        try:
            while ended is None:
                for speaker in _speakers(selector):
                    for message in speaker.read():
                        self._take(speaker, message)
                    if speaker.gone:
                        selector.unregister(speaker.connection)
                ended = self._judge(time.monotonic())
                on_tick(self)
            if ended.kind in {"done", "left"} and not self._abandoned:
                self._let_go(selector)
        finally:
            selector.close()
            for worker in self._workers:
                worker.kill()
                worker.close()
        return ended

    def _take(self, worker: Worker, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "step":
            worker.started = True
            self._moved_at = time.monotonic()
            if worker.rank == 0:
                self._account.worked(message["step"], message["busy"])
                self._on_step(message["step"], message["loss"])
                self.first_step_at = self.first_step_at or time.monotonic()
        elif kind == "up":
            worker.weights = message["weights"]
            if message["step"] >= self._settings.steps:
                worker.started = True
        elif kind == "saved":
            worker.saved[message["step"]] = message
            self._commit(message["step"])
        elif kind == "agreed":
            worker.agreed.add(message["step"])
            if all(message["step"] in w.agreed for w in self._workers):
                for other in self._workers:
                    other.order("leave" if self._leaving else "on")
                if self._leaving:
                    self._final_step = message["step"]
        elif kind in TROUBLES:
            worker.trouble = f"{kind}: {message['error']}"

    def _commit(self, step: int) -> None:
        saved = [worker.saved.get(step) for worker in self._workers]
        if any(one is None for one in saved):
            return
        parts = [one for one in saved if one is not None]
        if len({one["weights"] for one in parts}) > 1:
            self._workers[0].trouble = f"defect: the workers' weights differ at step {step}"
            return
        files = [Written(n, d) for one in parts for n, d in one["files"].items()]
        if self.committed is None or self.committed.step < step:
            meta = {"world": len(parts)}
            self.committed = self._manager.commit(step, self._number, files, meta)
            self.first_commit_at = self.first_commit_at or time.monotonic()
        self._account.committed(step)
        for worker in self._workers:
            del worker.saved[step]
        if step >= self._settings.steps:
            self._final_step = step

    def _judge(self, now: float) -> Ended | None:
        if self._abandoned:
            return Ended("left")
        if self._final_step is not None:
            done = self._final_step >= self._settings.steps
            return Ended("done" if done else "left")
        gone = [w for w in self._workers if w.gone or w.trouble]
        if gone:
            return self._failure(gone)
        weights = {w.weights for w in self._workers}
        if None not in weights and len(weights) > 1:
            return Ended("failed", "the workers began with different weights", defect=True)
        silent = [w for w in self._workers if w.started and self._is_silent(w, now)]
        if silent:
            return Ended(
                "failed",
                f"rank {', '.join(str(w.rank) for w in silent)} not heard for "
                f"{self._settings.beat_seconds:g} s",
                tuple(w.rank for w in silent),
            )
        late = [w for w in self._workers if not w.started]
        if late and now - self._begun > self._settings.start_seconds:
            ranks = tuple(w.rank for w in late)
            quiet = tuple(w.rank for w in late if self._is_silent(w, now))
            why = f"no first step within {self._settings.start_seconds:g} s"
            return Ended("failed", why, quiet or ranks)
        if not late and now - self._moved_at > self._settings.stall_seconds:
            return Ended("failed", f"no step for {self._settings.stall_seconds:g} s")
        return None

    def _is_silent(self, worker: Worker, now: float) -> bool:
        return now - worker.heard_at > self._settings.beat_seconds

    def _failure(self, gone: list[Worker]) -> Ended:
        """Who fell first: survivors say that they lost a peer, the culprit says nothing."""
        time.sleep(0.05)  # the others' words may be on their way
        for worker in self._workers:
            for message in worker.read():
                if message["kind"] in TROUBLES:
                    worker.trouble = f"{message['kind']}: {message['error']}"
        defects = [w for w in self._workers if (w.trouble or "").startswith("defect")]
        killed = [w for w in self._workers if w.gone and w.trouble is None]
        blamed = killed or defects or gone
        why = "; ".join(f"rank {w.rank} {w.trouble or 'ended'}" for w in blamed)
        refused = any((w.trouble or "").startswith("refused") for w in self._workers)
        if refused:
            return Ended("refused", why)
        return Ended("failed", why, tuple(w.rank for w in blamed), bool(defects) and not killed)

    def _let_go(self, selector: selectors.BaseSelector) -> None:
        for worker in self._workers:
            worker.order("end")
        deadline = time.monotonic() + LEAVE_SECONDS
        while any(not w.gone for w in self._workers) and time.monotonic() < deadline:
            for speaker in _speakers(selector):
                speaker.read()
                if speaker.gone:
                    selector.unregister(speaker.connection)


def _speakers(selector: selectors.BaseSelector) -> list[Worker]:
    return [key.data for key, _ in selector.select(TICK_SECONDS)]
