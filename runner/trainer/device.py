"""How TensorFlow is imported and how much of a machine it takes."""

import os
import sys
from typing import Any, Final, cast

_KERAS: Final = "keras.src.optimizers"
"""What ``tensorflow/__init__.py`` imports at its end, and does without when it is not there."""


def limit_tensorflow(threads: int = 1) -> None:
    """Import TensorFlow: quiet, deterministic, with few threads. Before anything else does.

    Keras is left out of the import (it stays importable afterwards): the trainer does not use
    it, and it doubles the time that a moved job needs to be back.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if "tensorflow" not in sys.modules:
        cast(dict[str, Any], sys.modules)[_KERAS] = None  # None: "not there" to import
    try:
        import tensorflow as tf
    finally:
        if sys.modules.get(_KERAS) is None:
            sys.modules.pop(_KERAS, None)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()
