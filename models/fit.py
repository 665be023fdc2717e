"""Fitting the network: Adam, early stopping on the validation loss, seeded."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.errors import RigcanaryError
from models.network import Scaler, build, tensorflow
from models.series import FEATURES

_CLIP_NORM: Final = 1.0
_MIN_STD: Final = 0.05
"""A feature that hardly varied in training must not be blown up when it does later."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How long and how fast; ``threads`` is TensorFlow's pool.

    ``stop_after`` epochs (of the schedule of ``epochs``) training ends without being watched.
    ``level_jitter`` shifts each ``:level`` feature of a window by one normal number (in its
    standard deviations), so that cards are not learnt by heart; ``noise`` is added to all.
    """

    epochs: int = 14
    patience: int = 4
    batch: int = 256
    learning_rate: float = 1.5e-3
    weight_decay: float = 2e-3
    level_jitter: float = 0.7
    noise: float = 0.15
    seed: int = 0
    threads: int = 2
    stop_after: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """The network with the best validation loss, the loss of every epoch, and which was best."""

    model: Any
    scaler: Scaler
    history: list[dict[str, float]]
    best_epoch: int


def scaler_of(x_NTF: npt.NDArray[np.float16]) -> Scaler:
    """Mean and standard deviation of each feature."""
    total = square = 0.0
    count = 0
    for at in range(0, len(x_NTF), 1024):
        chunk = x_NTF[at : at + 1024].astype(np.float64)
        total = total + chunk.sum(axis=(0, 1))
        square = square + np.square(chunk).sum(axis=(0, 1))
        count += chunk.shape[0] * chunk.shape[1]
    mean = np.asarray(total / count)
    std = np.sqrt(np.maximum(np.asarray(square / count) - mean**2, 0))
    return Scaler(mean.astype(np.float32), np.maximum(std, _MIN_STD).astype(np.float32))


def fit_network(  # noqa: PLR0915  # one loop, read from top to bottom
    training: tuple[npt.NDArray[np.float16], npt.NDArray[np.float32]],
    validation: tuple[npt.NDArray[np.float16], npt.NDArray[np.float32]],
    options: FitOptions,
    say: Callable[[str], None],
    base: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Fitted:
    """Fit on (x_NTF, y_NH); labels are 1, 0, or −1 where unknown.

    ``base`` are the weights of a network of the same features to go on from, scaler included.

    Raises:
        RigcanaryError: when no epoch gave a finite validation loss.
    """
    tf = tensorflow(options.threads)
    import keras

    x_NTF, y_NH = training
    scaler = scaler_of(x_NTF) if base is None else Scaler(base["scaler.mean"], base["scaler.std"])
    model = build(scaler, options.seed)
    if base is not None:
        for weight in model.trainable_weights:
            weight.assign(base[weight.path])
    optimizer = keras.optimizers.AdamW(
        options.learning_rate, weight_decay=options.weight_decay, clipnorm=_CLIP_NORM
    )
    optimizer.build(model.trainable_variables)
    rate = tf.Variable(options.learning_rate, dtype=tf.float32)

    def loss_of(x: Any, y: Any, learning: bool) -> Any:
        logits, _ = model(x, training=learning)
        known = tf.cast(y >= 0, tf.float32)
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.maximum(y, 0.0), logits=logits)
        return tf.reduce_sum(each * known) / tf.maximum(tf.reduce_sum(known), 1.0)

    level_F = np.array([name.endswith(":level") for name in FEATURES], np.float32)
    shift_F = tf.constant(scaler.std_F * level_F * options.level_jitter)
    noise_F = tf.constant(scaler.std_F * options.noise)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        x = tf.cast(x, tf.float32)
        shape = tf.shape(x)
        x += tf.random.normal((shape[0], 1, shape[2])) * shift_F
        x += tf.random.normal(shape) * noise_F
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, True)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function(jit_compile=True)
    def watch(x: Any, y: Any) -> Any:
        return loss_of(tf.cast(x, tf.float32), y, False)

    rng = np.random.default_rng(options.seed)
    steps = max(1, len(x_NTF) // options.batch)
    history: list[dict[str, float]] = []
    best: tuple[float, list[Any]] | None = None
    for epoch in range(options.epochs):
        began = time.monotonic()
        rate.assign(options.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / options.epochs)))
        optimizer.learning_rate.assign(rate)
        order = rng.permutation(len(x_NTF))
        losses = []
        for part in np.array_split(order, steps):
            losses.append(float(step(x_NTF[part], y_NH[part])))
        loss = float(np.mean(losses))
        # Unwatched, every epoch is better than the one before it.
        unwatched = options.stop_after is not None
        watched = -float(epoch) if unwatched else _watch(watch, validation, options.batch)
        history.append({"loss": loss} if unwatched else {"loss": loss, "validation_loss": watched})
        seen = "" if unwatched else f"validation {watched:.4f}, "
        say(
            f"epoch {epoch + 1}/{options.epochs}: loss {loss:.4f}, {seen}"
            f"{time.monotonic() - began:.0f} s"
        )
        if not math.isfinite(loss):
            break
        if math.isfinite(watched) and (best is None or watched < best[0]):
            best = (watched, [w.numpy() for w in model.trainable_weights])
            best_epoch = epoch
        elif best is not None and epoch - best_epoch >= options.patience:
            break
        if options.stop_after is not None and epoch + 1 >= options.stop_after:
            break
    if best is None or not math.isfinite(history[-1]["loss"]):
        raise RigcanaryError(
            "training diverged: the loss is not finite, nothing was saved; "
            "train again with another --seed"
        )
    for weight, value in zip(model.trainable_weights, best[1], strict=True):
        weight.assign(value)
    return Fitted(model, scaler, history, best_epoch)


def _watch(
    watch: Any, validation: tuple[npt.NDArray[np.float16], npt.NDArray[np.float32]], batch: int
) -> float:
    x_NTF, y_NH = validation
    total = 0.0
    for at in range(0, len(x_NTF), batch):
        x, y = x_NTF[at : at + batch], y_NH[at : at + batch]
        short = batch - len(x)
        if short:  # one shape, one compilation; −1 labels count for nothing
            x = np.concatenate([x, np.zeros((short, *x.shape[1:]), x.dtype)])
            y = np.concatenate([y, np.full((short, y.shape[1]), -1, y.dtype)])
        total += float(watch(x, y)) * (batch - short)
    return total / len(x_NTF)
