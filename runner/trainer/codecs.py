"""How gradients travel between workers: as they are, as float16, or as signs and scales.

A codec turns a worker's flat gradient into one message (:meth:`Codec.encode`) and what a
collective made of all messages into their mean (:meth:`Codec.decode`). Beside the gradient
travel a few control numbers (the loss, the wish to stop), so that a step needs one collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

CONTROLS: Final = 2
"""Control numbers in a message: weighted loss, wish to stop."""
WORD_BITS: Final = 32
LARGEST_HALF: Final = 6e4
"""Controls are held below float16's largest number, 65504."""
_POWERS: Final = (np.uint32(1) << np.arange(WORD_BITS, dtype=np.uint32)).astype(np.uint32)


@dataclass(frozen=True)
class Collected:
    """``mean_N`` of all workers' gradients, of their controls, and whether all were finite."""

    mean_N: tf.Tensor
    controls_K: tf.Tensor
    ok: tf.Tensor


class Codec(Protocol):
    """``collective`` says what is to be done with the messages of ``world`` workers.

    ``sum`` gives the sum of all messages, ``gather`` gives them as rows.
    """

    collective: Literal["sum", "gather"]
    residual_shape: tuple[int, ...]
    """Of what this worker still owes: zeros at first; ``(0,)`` where a codec owes nothing."""

    def encode(
        self, gradient_N: tf.Tensor, controls_K: tf.Tensor, residual: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The message, and the residual that follows if the step counts."""

    def decode(self, collected: tf.Tensor) -> Collected:
        """The same on every worker, to the bit."""


class Plain:
    """float32, or float16 when ``half``: half the bytes, and 11 bits of each number."""

    collective: Literal["sum", "gather"] = "sum"
    residual_shape: tuple[int, ...] = (0,)

    def __init__(self, world: int, *, half: bool) -> None:
        self._world = world
        self._half = half
        self._encode = tf.function(self._encode_now, jit_compile=True)
        self._decode = tf.function(self._decode_now, jit_compile=True)

    def encode(
        self, gradient_N: tf.Tensor, controls_K: tf.Tensor, residual: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return self._encode(gradient_N, controls_K), residual

    def decode(self, collected: tf.Tensor) -> Collected:
        return Collected(*self._decode(collected))

    def _encode_now(self, gradient_N: tf.Tensor, controls_K: tf.Tensor) -> tf.Tensor:
        held = tf.clip_by_value(controls_K, -LARGEST_HALF, LARGEST_HALF)
        held = tf.where(tf.math.is_finite(held), held, LARGEST_HALF)
        # Divided before it is narrowed: the sum of W halves would overflow sooner.
        mine = tf.concat([gradient_N, held], 0) / self._world
        return tf.cast(mine, tf.float16) if self._half else mine

    def _decode_now(self, collected: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        whole = tf.cast(collected, tf.float32)
        mean_N = whole[:-CONTROLS]
        return mean_N, whole[-CONTROLS:], tf.reduce_all(tf.math.is_finite(mean_N))


@dataclass(frozen=True)
class Layout:
    """Which parts of a flat gradient are sent as signs.

    A tensor of at least ``smallest`` elements is cut into rows of ``row_length``, the last one
    padded; each row has a scale. Smaller tensors (biases, norms) travel as float32.
    """

    sizes: tuple[int, ...]
    row_length: int = 1024
    smallest: int = 1024

    def __post_init__(self) -> None:
        if self.row_length % WORD_BITS or self.row_length < WORD_BITS:
            raise ValueError(f"row_length {self.row_length} is not a multiple of {WORD_BITS}")

    @cached_property
    def is_big(self) -> tuple[bool, ...]:
        """For each tensor, whether it travels as signs."""
        return tuple(size >= self.smallest for size in self.sizes)

    @cached_property
    def counts_R(self) -> npt.NDArray[np.float32]:
        """Real elements of each row."""
        counts: list[int] = []
        for size, big in zip(self.sizes, self.is_big, strict=True):
            if big:
                full, rest = divmod(size, self.row_length)
                counts += [self.row_length] * full + ([rest] if rest else [])
        return np.array(counts, np.float32)

    @cached_property
    def small(self) -> int:
        """Elements that travel as float32."""
        return sum(s for s, big in zip(self.sizes, self.is_big, strict=True) if not big)

    def split(self, flat_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows (R, C), padded with zeros, and the small tensors (S)."""
        big: list[tf.Tensor] = []
        small: list[tf.Tensor] = []
        parts = tf.split(flat_N, list(self.sizes))
        for part, size, is_big in zip(parts, self.sizes, self.is_big, strict=True):
            if is_big:
                big.append(tf.pad(part, [[0, -size % self.row_length]]))
            else:
                small.append(part)
        rows = tf.concat(big, 0) if big else tf.zeros([0])
        return (
            tf.reshape(rows, [len(self.counts_R), self.row_length]),
            tf.concat(small, 0) if small else tf.zeros([0]),
        )

    def join(self, rows_RC: tf.Tensor, small_S: tf.Tensor) -> tf.Tensor:
        """The inverse of :meth:`split`."""
        flat = tf.reshape(rows_RC, [-1])
        parts: list[tf.Tensor] = []
        at = small_at = 0
        for size, is_big in zip(self.sizes, self.is_big, strict=True):
            if is_big:
                parts.append(flat[at : at + size])
                at += size + -size % self.row_length
            else:
                parts.append(small_S[small_at : small_at + size])
                small_at += size
        return tf.concat(parts, 0)


class OneBit:
    """The sign of each element and the mean magnitude of each row.

    What a message says too much or too little is kept and added to the next gradient (error
    feedback: Seide et al. 2014, Karimireddy et al. 2019). ``feedback`` false is the naive
    method, for comparison. Zero is sent as the negative scale; an all-zero row has scale 0 and
    stays zero.

    The message is one int32 vector: packed signs, the bits of the scales, those of the small
    tensors, those of the controls. TensorFlow's gather knows no unsigned integers, and a second
    message would cost a second round trip. A worker whose gradient is not finite has a scale
    that is not: all see that in the message itself, and skip alike.
    """

    collective: Literal["sum", "gather"] = "gather"

    def __init__(self, world: int, layout: Layout, *, feedback: bool = True) -> None:
        self._world = world
        self._layout = layout
        self._feedback = feedback
        self._rows = len(layout.counts_R)
        self.residual_shape: tuple[int, ...] = (self._rows, layout.row_length)
        # Separate programs: one fused program of all three took 3.4 times as long (measured).
        self._prepare = tf.function(self._prepare_now, jit_compile=True)
        self._pack = tf.function(self._pack_now, jit_compile=True)
        self._left = tf.function(self._left_now, jit_compile=True)
        self._decode = tf.function(self._decode_now, jit_compile=True)

    def encode(
        self, gradient_N: tf.Tensor, controls_K: tf.Tensor, residual: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        rows_RC, small_S, scales_R = self._prepare(gradient_N, residual)
        message = self._pack(rows_RC, scales_R, small_S, controls_K)
        return message, self._left(rows_RC, scales_R) if self._feedback else residual

    def decode(self, collected: tf.Tensor) -> Collected:
        return Collected(*self._decode(collected))

    def _prepare_now(
        self, gradient_N: tf.Tensor, residual: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        rows_RC, small_S = self._layout.split(gradient_N)
        if self._feedback:
            rows_RC += residual
        scales_R = tf.reduce_sum(tf.abs(rows_RC), 1) / self._layout.counts_R
        return rows_RC, small_S, scales_R

    def _pack_now(
        self, rows_RC: tf.Tensor, scales_R: tf.Tensor, small_S: tf.Tensor, controls_K: tf.Tensor
    ) -> tf.Tensor:
        bits = tf.reshape(rows_RC > 0, [-1, WORD_BITS])
        words = tf.reduce_sum(tf.where(bits, tf.constant(_POWERS), tf.constant(0, tf.uint32)), 1)
        floats = tf.concat([scales_R, small_S, controls_K], 0)
        return tf.concat([tf.bitcast(words, tf.int32), tf.bitcast(floats, tf.int32)], 0)

    def _left_now(self, rows_RC: tf.Tensor, scales_R: tf.Tensor) -> tf.Tensor:
        sent = tf.where(rows_RC > 0, scales_R[:, None], -scales_R[:, None])
        columns = tf.range(self._layout.row_length, dtype=tf.float32)[None]
        real = columns < tf.constant(self._layout.counts_R)[:, None]
        return tf.where(real, rows_RC - sent, 0.0)

    def _decode_now(self, collected: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        rows, length = self._rows, self._layout.row_length
        words = rows * length // WORD_BITS
        floats = tf.bitcast(collected[:, words:], tf.float32)
        scales = floats[:, :rows]
        small = floats[:, rows : rows + self._layout.small]
        total_RC = tf.zeros([rows, length])
        for worker in range(self._world):
            shifted = tf.bitwise.right_shift(
                collected[worker, :words][:, None], tf.range(WORD_BITS, dtype=tf.int32)[None]
            )
            signs = tf.cast(tf.bitwise.bitwise_and(shifted, 1), tf.float32) * 2 - 1
            total_RC += tf.reshape(signs, [rows, length]) * scales[worker][:, None]
        mean_N = self._layout.join(total_RC / self._world, tf.reduce_mean(small, 0))
        ok = tf.reduce_all(tf.math.is_finite(scales)) & tf.reduce_all(tf.math.is_finite(small))
        return mean_N, tf.reduce_mean(floats[:, rows + self._layout.small :], 0), ok


def make_codec(name: str, world: int, sizes: Sequence[int], row_length: int) -> Codec:
    """The codec of that name for gradients of these sizes.

    Raises:
        ValueError: for a name that is none.
    """
    if name in {"none", "fp16"}:
        return Plain(world, half=name == "fp16")
    layout = Layout(tuple(sizes), row_length)
    if name in {"onebit", "naive"}:
        return OneBit(world, layout, feedback=name == "onebit")
    raise ValueError(f"no codec is named {name!r}; there are none, fp16, onebit, naive")
