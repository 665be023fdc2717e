"""One worker's part of a run: gradients, their exchange, the update, and a state to be saved.

The user's variables are plain ones outside the strategy; of the strategy only its collectives
are used, in :meth:`Session._transport`. Keras' ``apply_gradients`` inside ``strategy.run``
would add a float32 all_reduce of its own, that undoes the codec and multiplies the step by the
number of workers. :func:`check_collectives` holds the compiled step against that.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from runner.trainer.codecs import Codec, Plain, make_codec
from runner.trainer.program import Program, ProgramError

Arrays = dict[str, npt.NDArray[Any]]
_REDUCES: Final = ("CollectiveReduce",)
_GATHERS: Final = ("CollectiveGather",)


@dataclass(frozen=True)
class Outcome:
    """Of one step, the same on all workers. ``stop``: at least one wishes to stop."""

    loss: float
    ok: bool
    stop: bool


class Session:
    """State and compiled steps of one worker among ``world``.

    ``strategy`` is None for a world of one, whose peer takes its own gradient as it is.
    """

    def __init__(
        self,
        program: Program,
        optimizer: Any,
        *,
        world: int,
        codec: str,
        row_length: int = 1024,
        momentum: float = 0.9,
        strategy: Any = None,
    ) -> None:
        if (world > 1) != (strategy is not None):
            raise ValueError("a strategy is for a world of more than one")
        self._program = program
        self._optimizer = optimizer
        self._variables = list(program.model.trainable_variables)
        if not self._variables:
            raise ProgramError("the model has no trainable variables; build it with its inputs")
        self._shapes = [tuple(v.shape) for v in self._variables]
        self._sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        optimizer.build(self._variables)
        self._world = world
        self._momentum = momentum
        self._strategy = strategy
        self._codec = make_codec(codec, world, self._sizes, row_length)
        self._warm: Codec = Plain(world, half=False)
        # A world of one owes nothing: what it computes, it applies.
        shape = self._codec.residual_shape if world > 1 else (0,)
        self._residual = tf.Variable(tf.zeros(shape), trainable=False)
        self._velocity_N = tf.Variable(tf.zeros([sum(self._sizes)]), trainable=False)
        self._steps = {True: tf.function(self._warm_step), False: tf.function(self._codec_step)}
        self._apply = tf.function(self._apply_now)

    @property
    def world(self) -> int:
        """Workers, this one included."""
        return self._world

    def step(
        self, batch: Any, *, warm_up: bool, scale: float, weight: float, stop: bool
    ) -> Outcome:
        """Compute, exchange and apply one step; nothing changes when it was not finite."""
        mean_N, velocity_N, residual, controls_K, ok = self._steps[warm_up](
            batch, tf.constant(scale), tf.constant(weight), tf.constant(float(stop))
        )
        if bool(ok):
            self._apply(mean_N, velocity_N, residual)
        loss, stops = controls_K.numpy()
        return Outcome(float(loss), bool(ok), bool(stops > 0))

    def check_collectives(self, batch: Any, *, warm_up: bool) -> dict[str, int]:
        """Count the collectives of the compiled step and hold them to what the codec needs.

        Raises:
            AssertionError: when something else communicates too.
        """
        one = tf.constant(1.0)
        concrete = self._steps[warm_up].get_concrete_function(batch, one, one, one)
        found = count_collectives(concrete.graph)
        if self._world == 1:
            wanted = {"reduce": 0, "gather": 0}
        elif (self._warm if warm_up else self._codec).collective == "sum":
            wanted = {"reduce": 1, "gather": 0}
        else:
            wanted = {"reduce": 0, "gather": 2}  # the shapes are gathered first
        if found != wanted:
            raise AssertionError(f"the step communicates {found}, its codec needs {wanted}")
        return found

    def shared_state(self) -> Arrays:
        """What is the same on all workers: weights and the optimizer's variables."""
        return {
            **{f"weight/{i}": _array(v) for i, v in enumerate(self._variables)},
            **{f"optimizer/{i}": _array(v) for i, v in enumerate(self._optimizer.variables)},
        }

    def own_state(self) -> Arrays:
        """What is this worker's: local momentum, residual, the model's other variables."""
        others = self._program.model.non_trainable_variables
        return {
            "velocity": self._velocity_N.numpy(),
            "residual": self._residual.numpy(),
            **{f"other/{i}": _array(v) for i, v in enumerate(others)},
        }

    def restore(self, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        """Take over a state; ``own`` has one entry (this worker's) when the world is the same.

        After a change of membership it has those of all earlier workers. Local momenta and
        residuals are then replaced by their mean: the next mean over the new workers is what
        it would have been over the old ones, so no gradient that was owed gets lost. A residual
        of another codec or shape begins at zero.

        Raises:
            ProgramError: when the state is of another model.
        """
        variables = {
            **{f"weight/{i}": v for i, v in enumerate(self._variables)},
            **{f"optimizer/{i}": v for i, v in enumerate(self._optimizer.variables)},
        }
        others = self._program.model.non_trainable_variables
        variables_own = {f"other/{i}": v for i, v in enumerate(others)}
        have = {**shared, **{k: a for k, a in own[0].items() if k.startswith("other/")}}
        wanted = {**variables, **variables_own}
        if have.keys() != wanted.keys() or any(
            tuple(v.shape) != have[k].shape for k, v in wanted.items()
        ):
            raise ProgramError("the checkpoint is of another model; give a new folder")
        for name, variable in wanted.items():
            variable.assign(have[name])
        self._velocity_N.assign(_mean([o["velocity"] for o in own]))
        residuals = [o["residual"] for o in own]
        if residuals[0].shape == tuple(self._residual.shape):
            self._residual.assign(_mean(residuals))

    def digest(self) -> str:
        """Of the shared state: equal on all workers, or something is wrong."""
        digest = hashlib.sha256()
        for array in self.shared_state().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _warm_step(self, batch: Any, scale: Any, weight: Any, stop: Any) -> Any:
        return self._exchange(self._warm, batch, scale, weight, stop)

    def _codec_step(self, batch: Any, scale: Any, weight: Any, stop: Any) -> Any:
        return self._exchange(self._codec, batch, scale, weight, stop)

    def _exchange(self, codec: Codec, batch: Any, scale: Any, weight: Any, stop: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.cast(self._program.batch_loss(batch), tf.float32)
            scaled = loss * scale
        sources = [getattr(v, "value", v) for v in self._variables]
        gradients = tape.gradient(scaled, sources)
        flat = [
            tf.zeros([size]) if g is None else tf.reshape(tf.convert_to_tensor(g), [-1])
            for g, size in zip(gradients, self._sizes, strict=True)
        ]
        # Unscaled before anything is remembered: a residual must not depend on the scale.
        gradient_N = tf.concat(flat, 0) * (weight / scale)
        velocity_N = self._momentum * self._velocity_N + gradient_N
        controls_K = tf.stack([loss * weight, stop])
        if self._world == 1:
            ok = tf.reduce_all(tf.math.is_finite(velocity_N))
            return velocity_N, velocity_N, self._residual.read_value(), controls_K, ok
        codec_residual = self._residual.read_value()
        message, residual = codec.encode(velocity_N, controls_K, codec_residual)
        got = codec.decode(self._transport(codec, message))
        return got.mean_N, velocity_N, residual, got.controls_K, got.ok

    def _transport(self, codec: Codec, message: tf.Tensor) -> tf.Tensor:
        # No CommunicationOptions(timeout_seconds=…): it parks two sleeping threads a collective.
        def exchange(mine: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            mine = tf.identity(mine)  # gives it this replica's device
            if codec.collective == "sum":
                return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
            return context.all_gather(tf.identity(mine[None]), 0)

        return self._strategy.run(exchange, (message,))

    def _apply_now(self, mean_N: tf.Tensor, velocity_N: tf.Tensor, residual: tf.Tensor) -> None:
        parts = tf.split(mean_N, self._sizes)
        gradients = [tf.reshape(p, s) for p, s in zip(parts, self._shapes, strict=True)]
        self._optimizer.apply(gradients, self._variables)
        self._velocity_N.assign(velocity_N)
        self._residual.assign(residual)


def count_collectives(graph: Any) -> dict[str, int]:
    """Collective operations of a graph and of all functions it may call."""
    definition = graph.as_graph_def()
    names = [node.op for node in definition.node]
    names += [node.op for function in definition.library.function for node in function.node_def]
    return {
        "reduce": sum(name.startswith(_REDUCES) for name in names),
        "gather": sum(name.startswith(_GATHERS) for name in names),
    }


def _array(variable: Any) -> npt.NDArray[Any]:
    return np.asarray(variable)


def _mean(arrays: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    if len(arrays) == 1:
        return arrays[0]
    return np.asarray(np.mean(np.stack(arrays), axis=0, dtype=np.float64), np.float32)
