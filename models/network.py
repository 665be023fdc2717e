"""The network: LSTM(64) → attention over the sixty minutes → risk within 15, 60 and 240 minutes.

The architecture that the project set out to test, as it is trained. Weights are plain arrays
(``.npz``); features are standardised inside the network, by numbers that belong to the weights.
:mod:`models.forward` computes it without TensorFlow, which is imported when a function needs it.
"""

import os
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contract.errors import RigcanaryError
from models.windows import HORIZONS_MINUTES

UNITS: Final = 64
ATTENTION_UNITS: Final = 32
DENSE_UNITS: Final = 32
DROPOUT: Final = 0.2
Array = npt.NDArray[np.float32]


class Scaler(NamedTuple):
    """Mean and standard deviation of each feature over the training windows."""

    mean_F: Array
    std_F: Array


def tensorflow(threads: int = 1) -> Any:
    """TensorFlow with ``threads`` a pool; that holds only if this process did not use it yet."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        # Somebody in this process has used TensorFlow before; its pools stay as they are.
        return tf
    return tf


def build(scaler: Scaler, seed: int = 0) -> Any:
    """A fresh ``keras.Model``: x_BTF float32 [B, T, F] → logits [B, 3], attention [B, T]."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    x_BTF = keras.Input((None, len(scaler.mean_F)), name="x_BTF")
    scaled = layers.Normalization(mean=scaler.mean_F, variance=np.square(scaler.std_F))(x_BTF)
    hidden = layers.LSTM(UNITS, return_sequences=True, name="lstm")(scaled)
    key = layers.Dense(ATTENTION_UNITS, activation="tanh", name="key")(hidden)
    share = layers.Softmax(axis=1)(layers.Dense(1, name="energy")(key))
    context = layers.Flatten()(layers.Dot(axes=1)([share, hidden]))
    joined = layers.Dropout(DROPOUT)(layers.Concatenate()([context, hidden[:, -1]]))
    dense = layers.Dense(DENSE_UNITS, activation="relu", name="dense")(joined)
    logits = layers.Dense(len(HORIZONS_MINUTES), name="logits")(dense)
    return keras.Model(x_BTF, [logits, share[:, :, 0]])


def to_arrays(model: Any, scaler: Scaler) -> dict[str, Array]:
    """The weights as named arrays.

    Raises:
        RigcanaryError: when one of them is not finite.
    """
    arrays = {"scaler.mean": scaler.mean_F, "scaler.std": scaler.std_F}
    arrays |= {w.path: np.asarray(w.numpy(), np.float32) for w in model.trainable_weights}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise RigcanaryError(
                f"training diverged: the weights {name} are not finite, nothing was saved; "
                "train again with another --seed"
            )
    return arrays
