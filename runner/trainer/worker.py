"""A worker of one generation: joins the others, trains, saves at agreed boundaries, and ends.

It is forked from the standby process (:mod:`runner.trainer.standby`), which has imported
everything, and speaks with the supervisor over one socket, in lines of JSON.
"""

import gc
import json
import logging
import math
import os
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from runner.trainer.plan import Assignment
from runner.trainer.program import ProgramError
from runner.trainer.rules import LossScale, gradient_weights

log = logging.getLogger("rigcanary.trainer")
EXIT_LOST: Final = 75
"""A peer or the network was lost (EX_TEMPFAIL): a new generation may do better."""
EXIT_DEFECT: Final = 70
"""EX_SOFTWARE: the program itself raised."""
BEAT_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 0.1
SMOOTHING: Final = 0.98
NCCL_WORDS: Final = ("unhandled system error", "unhandled cuda error", "nccl")
"""NCCL's troubles arrive as errors of several classes; their text names it. Not seen here."""


class Channel:
    """Lines of JSON to the supervisor and back; a heartbeat from a thread of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._pending = b""
        self._queue: deque[str] = deque()

    def send(self, **message: Any) -> None:
        """Say something; a supervisor that is gone ends this process."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            os._exit(EXIT_LOST)

    def order(self, *, wait_seconds: float = 0.0) -> str | None:
        """The next order, in their order; waits for one as long as that."""
        if not self._queue:
            self._socket.settimeout(wait_seconds or 1e-6)
            try:
                data = self._socket.recv(4096)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError:
                os._exit(EXIT_LOST)
            finally:
                self._socket.settimeout(None)
            if not data:
                os._exit(EXIT_LOST)
            *lines, self._pending = (self._pending + data).split(b"\n")
            self._queue.extend(str(json.loads(line)["order"]) for line in lines)
        return self._queue.popleft() if self._queue else None

    def start_beating(self) -> None:
        """Tell every ``BEAT_SECONDS`` that this process runs."""

        def beat() -> None:
            while True:
                self.send(kind="beat")
                time.sleep(BEAT_SECONDS)

        threading.Thread(target=beat, daemon=True).start()


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error speaks of a peer or the network, and not of the program."""
    import tensorflow as tf

    errors = tf.errors
    if isinstance(
        error,
        errors.UnavailableError
        | errors.AbortedError
        | errors.DeadlineExceededError
        | errors.CancelledError,
    ):
        return True
    return isinstance(error, tf.errors.OpError) and any(
        word in str(error).lower() for word in NCCL_WORDS
    )


def run_worker(
    connection: socket.socket, assignment: Assignment, module: ModuleType, function: str
) -> None:
    """The whole life of a forked worker; ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(connection)
    try:
        _Worker(channel, assignment, module, function).run()
    except Exception as error:  # noqa: BLE001  the supervisor is told, whatever it was
        if is_lost_peer(error):
            channel.send(kind="lost", error=str(error).splitlines()[0][:300])
            os._exit(EXIT_LOST)
        if isinstance(error, ProgramError):
            channel.send(kind="refused", error=str(error))
            os._exit(EXIT_DEFECT)
        traceback.print_exc()
        channel.send(kind="defect", error=f"{type(error).__name__}: {error}"[:600])
        os._exit(EXIT_DEFECT)
    os._exit(0)  # TensorFlow's own shutdown waits for peers that may be gone


class _Worker:
    def __init__(
        self, channel: Channel, assignment: Assignment, module: ModuleType, function: str
    ) -> None:
        self._channel = channel
        self._plan = assignment
        self._settings = assignment.settings
        self._rank = assignment.rank
        self._world = len(assignment.addresses)
        self._program = self._join(module, function)
        self._step = self._epoch = self._offset = 0
        self._scale = LossScale() if self._settings.mixed_precision else LossScale(1.0, fixed=True)
        self._smoothed: float | None = None
        self._restore()

    def _join(self, module: ModuleType, function: str) -> Any:
        """Meet the others; an early operation would make that impossible, so it comes first."""
        import keras
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        tf.config.experimental.enable_op_determinism()
        strategy = None
        if self._world > 1:
            task = {"type": "worker", "index": self._rank}
            cluster = {"worker": self._plan.addresses}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._channel.start_beating()
        keras.utils.set_random_seed(self._settings.seed)
        if self._settings.mixed_precision:
            keras.mixed_precision.set_global_policy("mixed_float16")
        program = getattr(module, function)(self._settings.seed)
        optimizer = program.optimizer
        if optimizer is None:
            optimizer = keras.optimizers.SGD(self._settings.learning_rate)
        from runner.trainer.session import Session

        self._session = Session(
            program,
            optimizer,
            world=self._world,
            codec=self._settings.codec,
            row_length=self._settings.row_length,
            momentum=self._settings.momentum,
            strategy=strategy,
        )
        return program

    def _restore(self) -> None:
        if self._plan.checkpoint is None:
            return
        from runner.trainer.checkpoint import read_file

        folder = Path(self._plan.checkpoint)
        shared = read_file(folder / "shared")
        meta = shared.meta
        ranks = [self._rank] if meta["world"] == self._world else range(meta["world"])
        own = [read_file(folder / f"worker-{rank}").arrays for rank in ranks]
        self._session.restore(shared.arrays, own)
        self._step = shared.step
        self._epoch, self._offset = meta["epoch"], meta["offset"]
        self._scale = LossScale(**meta["loss_scale"])
        self._smoothed = meta["smoothed_loss"]

    def _batches(self) -> Iterator[Any]:
        """This worker's slices; the position moves on by the whole batch."""
        import tensorflow as tf

        total = sum(self._plan.sizes)
        begin = sum(self._plan.sizes[: self._rank])
        end = begin + self._plan.sizes[self._rank]
        prepare = self._program.prepare
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        options.deterministic = True
        while True:
            data = self._program.examples(self._epoch).skip(self._offset)
            data = data.batch(total, drop_remainder=True)
            data = data.map(lambda *b: tf.nest.map_structure(lambda t: t[begin:end], b))
            data = data.map(lambda *b: b[0] if len(b) == 1 else b)
            if prepare is not None:
                data = data.map(lambda *b: prepare(b[0] if len(b) == 1 else b))
            fresh = self._offset == 0
            for batch in data.with_options(options).prefetch(2):
                self._offset += total
                fresh = False
                yield batch
            if fresh:
                raise ProgramError(f"an epoch has fewer examples than a step takes: {total}")
            self._epoch, self._offset = self._epoch + 1, 0

    def run(self) -> None:
        """Train until the last step or an agreed stop."""
        settings = self._settings
        weight = gradient_weights(self._plan.sizes)[self._rank]
        warm_checked: set[bool] = set()
        wish = False
        busy, reported, first = 0.0, time.monotonic(), True
        batches = self._batches()
        self._channel.send(kind="up", step=self._step, weights=self._session.digest())
        while self._step < settings.steps:
            begun = time.monotonic()
            while self._channel.order() is not None:
                wish = True
            batch = next(batches)
            warm = self._step < settings.warmup
            if warm not in warm_checked:
                self._session.check_collectives(batch, warm_up=warm)
                warm_checked.add(warm)
            outcome = self._session.step(
                batch, warm_up=warm, scale=self._scale.value, weight=weight, stop=wish
            )
            self._scale = self._scale.after(outcome.ok)
            self._step += 1
            self._note(outcome.loss)
            time.sleep(max(begun + settings.step_seconds - time.monotonic(), 0.0))
            busy += time.monotonic() - begun
            if first or time.monotonic() - reported > REPORT_SECONDS:
                self._report(busy)
                busy, reported, first = 0.0, time.monotonic(), False
            last = self._step == settings.steps
            if outcome.stop or last or self._step % settings.save_interval == 0:
                self._report(busy)
                busy = 0.0
                self._save()
                wish = False
                if last or (outcome.stop and self._told_to_leave()):
                    break
            if settings.compact_every and self._step % settings.compact_every == 0:
                self._compact()
        else:
            self._save()  # everything was done before: the supervisor needs its answer all the same
        while self._channel.order(wait_seconds=1.0) != "end":
            pass

    def _told_to_leave(self) -> bool:
        """After an agreed save the supervisor says whether to go on: the same to all."""
        self._channel.send(kind="agreed", step=self._step)
        while True:
            order = self._channel.order(wait_seconds=1.0)
            if order in {"on", "leave"}:
                return order == "leave"

    def _note(self, loss: float) -> None:
        if not math.isfinite(loss):
            return  # the step was skipped
        old = loss if self._smoothed is None else self._smoothed
        self._smoothed = SMOOTHING * old + (1 - SMOOTHING) * loss

    def _report(self, busy: float) -> None:
        self._channel.send(kind="step", step=self._step, loss=self._smoothed, busy=busy)

    def _compact(self) -> None:
        """The memory policy: give back what is not needed. Stands for a defragmenter."""
        gc.collect()
        if self._program.on_compact is not None:
            self._program.on_compact()

    def _save(self) -> None:
        from runner.trainer.checkpoint import Checkpoint, write_file
        from runner.trainer.manager import staging_folder

        staged = staging_folder(Path(self._plan.folder), self._step, self._plan.generation)
        staged.mkdir(exist_ok=True)
        name = f"worker-{self._rank}"
        files = {name: write_file(staged / name, Checkpoint(self._step, self._own(), {}))}
        if self._rank == 0:
            meta = {
                "world": self._world,
                "epoch": self._epoch,
                "offset": self._offset,
                "loss_scale": vars(self._scale),
                "smoothed_loss": self._smoothed,
            }
            shared = Checkpoint(self._step, self._session.shared_state(), meta)
            files["shared"] = write_file(staged / "shared", shared)
        self._channel.send(
            kind="saved", step=self._step, files=files, weights=self._session.digest()
        )

    def _own(self) -> Any:
        return self._session.own_state()
