"""A small transformer learns to spell: next characters of the manual that ships with Python.

python -m runner.trainer.supervise examples/train_chars.py:program --workers 2 --codec onebit
"""

from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from runner.trainer.program import Program

CONTEXT, WIDTH, LETTERS = 32, 64, 96
LEARNING_RATE = 0.15


def letters() -> np.ndarray:
    """The text as numbers below ``LETTERS``; what is not printable ASCII is 0."""
    codes = np.frombuffer("\n".join(topics[k] for k in sorted(topics)).encode(), np.uint8)
    return np.where((codes >= 32) & (codes < 127), codes - 31, 0).astype("int32")


def transformer() -> keras.Model:
    """One layer of causal attention and one of two dense ones, both residual."""
    inputs = keras.Input((CONTEXT,), dtype="int32")
    places = layers.Embedding(CONTEXT, WIDTH)(ops.arange(CONTEXT))
    x = layers.Embedding(LETTERS, WIDTH)(inputs) + places
    y = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    x += layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(y))
    return keras.Model(inputs, layers.Dense(LETTERS)(layers.LayerNormalization()(x)))


def program(seed: int) -> Program:
    """Called in every worker; whatever is random depends on the seed and the epoch alone."""
    text = letters()
    train = tf.constant(text[: len(text) * 9 // 10])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def examples(epoch: int) -> tf.data.Dataset:
        rng = np.random.default_rng([seed, epoch])
        return tf.data.Dataset.from_tensor_slices(rng.integers(0, len(train) - CONTEXT - 1, 65536))

    def prepare(starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        windows = tf.gather(train, starts[:, None] + tf.range(CONTEXT + 1, dtype=starts.dtype))
        return windows[:, :-1], windows[:, 1:]

    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    return Program(
        transformer(), examples, loss=cross_entropy, prepare=prepare, optimizer=optimizer
    )
