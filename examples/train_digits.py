"""Classify scikit-learn's handwritten digits: what a training program looks like.

python -m runner.trainer.supervise examples/train_digits.py:program --workers 2 --codec onebit
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from runner.trainer.program import Program


def program(seed: int) -> Program:
    """Called in every worker; whatever is random depends on the seed and the epoch alone."""
    images, labels = load_digits(return_X_y=True)
    pairs = (images[:1437].astype("float32") / 16, labels[:1437].astype("int32"))
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )

    def examples(epoch: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(pairs).shuffle(1437, seed=seed * 1000 + epoch)

    return Program(
        model, examples, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
