"""SGD with momentum on one device, as a compiled step, with a state that can be saved."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from runner.trainer.settings import TrainerSettings
from runner.trainer.task import Task

_WEIGHT = "weight/"
_VELOCITY = "velocity/"


class Loop:
    """Weights and velocities of one run.

    The update is our own, on plain variables: Keras' ``apply_gradients`` adds an all_reduce of
    its own once there are several workers.
    """

    def __init__(self, task: Task, settings: TrainerSettings) -> None:
        self._task = task
        self._settings = settings
        initial = task.weights(settings.seed)
        self._weights = {name: tf.Variable(value) for name, value in initial.items()}
        self._velocities = {name: tf.Variable(tf.zeros_like(v)) for name, v in initial.items()}
        self._compiled = tf.function(self._update)

    def step(self, number: int) -> float:
        """Do step ``number`` (from 0); the loss of its batch before the update."""
        inputs, labels = self._task.batch(self._settings.seed, number, self._settings.batch_size)
        return float(self._compiled(tf.constant(inputs), tf.constant(labels)))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that a later step depends on."""
        return {
            **{_WEIGHT + name: v.numpy() for name, v in self._weights.items()},
            **{_VELOCITY + name: v.numpy() for name, v in self._velocities.items()},
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave.

        Raises:
            ValueError: when names or shapes are those of another model.
        """
        own = {
            **{_WEIGHT + name: v for name, v in self._weights.items()},
            **{_VELOCITY + name: v for name, v in self._velocities.items()},
        }
        if own.keys() != state.keys():
            raise ValueError("the checkpoint is of another model")
        for name, variable in own.items():
            if tuple(variable.shape) != state[name].shape:
                raise ValueError(f"the checkpoint's {name} has the shape {state[name].shape}")
            variable.assign(state[name])

    def _update(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self._task.loss(self._weights, inputs, labels)
        gradients = tape.gradient(loss, self._weights)
        for name, weight in self._weights.items():
            velocity = self._velocities[name]
            gradient = tf.convert_to_tensor(gradients[name])
            velocity.assign(self._settings.momentum * velocity + gradient)
            weight.assign_sub(self._settings.learning_rate * velocity)
        return loss
