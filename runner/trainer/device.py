"""How much of a machine TensorFlow takes, and that it computes the same thing twice."""

import os


def limit_tensorflow(threads: int = 1) -> None:
    """One thread unless told otherwise, quiet, deterministic. Before TensorFlow computes."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()
