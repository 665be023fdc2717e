"""What is learnt: data, a model's weights and its loss. One class and one line in ``TASKS`` each.

The batch of a step depends on (seed, step) alone, so a resumed run sees the same data.
"""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Variables = dict[str, tf.Variable]


class Task(Protocol):
    """A learning task."""

    data_digest: str
    """Names the data: a run that goes on with other data says so."""

    def weights(self, seed: int) -> dict[str, Floats]:
        """Initial weights by name."""

    def batch(self, seed: int, step: int, size: int) -> tuple[Any, Ints]:
        """Inputs and labels of one step."""

    def loss(self, weights: Variables, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Mean loss of a batch, a scalar."""


class Chars:
    """Predicts the next character of the Python manual's text, which ships with Python.

    A window of characters → embeddings → one hidden layer → a distribution over characters
    (after Bengio et al. 2003, A Neural Probabilistic Language Model).
    """

    CONTEXT: Final = 24
    EMBEDDING: Final = 16
    HIDDEN: Final = 128
    ALPHABET: Final = "\n" + "".join(chr(c) for c in range(32, 127))

    def __init__(self) -> None:
        text = _manual()
        codes = np.full(256, self.ALPHABET.index(" "), np.int32)
        for code, character in enumerate(self.ALPHABET):
            codes[ord(character)] = code
        self._codes_N = codes[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
        self.data_digest = hashlib.sha256(self._codes_N.tobytes()).hexdigest()

    def weights(self, seed: int) -> dict[str, Floats]:
        """Embedding, hidden and output layers; Glorot normal."""
        rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
        size = len(self.ALPHABET)
        flat = self.CONTEXT * self.EMBEDDING
        return {
            "embedding": rng.normal(0, 0.1, (size, self.EMBEDDING)).astype(np.float32),
            "hidden": _glorot(rng, flat, self.HIDDEN),
            "hidden_bias": np.zeros(self.HIDDEN, np.float32),
            "output": _glorot(rng, self.HIDDEN, size),
            "output_bias": np.zeros(size, np.float32),
        }

    def batch(self, seed: int, step: int, size: int) -> tuple[Ints, Ints]:
        """``size`` windows at random places and the characters after them."""
        rng = np.random.Generator(np.random.Philox(key=[seed, step + 1]))
        starts_B = rng.integers(0, len(self._codes_N) - self.CONTEXT, size)
        windows = self._codes_N[starts_B[:, None] + np.arange(self.CONTEXT + 1)]
        return windows[:, :-1], windows[:, -1]

    def loss(self, weights: Variables, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Mean cross-entropy, nats a character."""
        embedded = tf.gather(weights["embedding"], inputs)
        flat = tf.reshape(embedded, [-1, self.CONTEXT * self.EMBEDDING])
        hidden = tf.tanh(flat @ weights["hidden"] + weights["hidden_bias"])
        logits = hidden @ weights["output"] + weights["output_bias"]
        return _cross_entropy(logits, labels)


class Digits:
    """Classifies scikit-learn's 8 × 8 digits (UCI Optical Recognition of Handwritten Digits)."""

    HIDDEN: Final = 64

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        self._images_NP = (images / 16.0).astype(np.float32)
        self._labels_N = labels.astype(np.int32)
        self.data_digest = hashlib.sha256(self._images_NP.tobytes()).hexdigest()

    def weights(self, seed: int) -> dict[str, Floats]:
        """Hidden and output layers; Glorot normal."""
        rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
        return {
            "hidden": _glorot(rng, 64, self.HIDDEN),
            "hidden_bias": np.zeros(self.HIDDEN, np.float32),
            "output": _glorot(rng, self.HIDDEN, 10),
            "output_bias": np.zeros(10, np.float32),
        }

    def batch(self, seed: int, step: int, size: int) -> tuple[Floats, Ints]:
        """``size`` images drawn with replacement."""
        rng = np.random.Generator(np.random.Philox(key=[seed, step + 1]))
        rows = rng.integers(0, len(self._labels_N), size)
        return self._images_NP[rows], self._labels_N[rows]

    def loss(self, weights: Variables, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Mean cross-entropy, nats."""
        hidden = tf.nn.relu(inputs @ weights["hidden"] + weights["hidden_bias"])
        return _cross_entropy(hidden @ weights["output"] + weights["output_bias"], labels)


TASKS: Final[dict[str, type[Chars] | type[Digits]]] = {"chars": Chars, "digits": Digits}


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def _glorot(rng: np.random.Generator, inputs: int, outputs: int) -> Floats:
    scale = np.sqrt(2.0 / (inputs + outputs))
    return rng.normal(0, scale, (inputs, outputs)).astype(np.float32)


def _manual() -> str:
    """The text of ``help("…")``; where a distribution leaves it out, sources of the library."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is not None and spec.origin is not None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    library = Path(importlib.util.__file__ or "").parent.parent
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(library.glob("[a-d]*.py")))
