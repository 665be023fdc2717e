"""Random streams that depend on their keys only, never on process, order or grouping."""

from collections.abc import Sequence
from hashlib import blake2s

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


def generator(seed: int, *keys: str) -> np.random.Generator:
    """The generator of ``keys`` (such as ``"card", "GPU-1f…"``) in the world of ``seed``."""
    digest = blake2s("\0".join(keys).encode(), digest_size=16).digest()
    words = tuple(np.frombuffer(digest, dtype="<u4").tolist())
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=words)))


def normals(seed: int, purpose: str, names: Sequence[str], count: int) -> F64:
    """``count`` standard normals for each name: shape [len(names), count]."""
    rows = [generator(seed, purpose, name).standard_normal(count) for name in names]
    return np.array(rows).reshape(len(names), count)


def uniforms(seed: int, purpose: str, names: Sequence[str], count: int) -> F64:
    """``count`` uniforms in [0, 1) for each name: shape [len(names), count]."""
    rows = [generator(seed, purpose, name).random(count) for name in names]
    return np.array(rows).reshape(len(names), count)


def clamp(values: F64, low: float, high: float) -> F64:
    """``np.clip`` without its overhead, which counts on eight cards."""
    return np.minimum(np.maximum(values, low), high)


class Noise:
    """One row of normals and one of uniforms a tick and device, drawn in blocks.

    A device's rows depend on its own name and the number of ticks so far, so that a rig
    alone and the same rig within a fleet see the same noise.
    """

    _BLOCK = 128

    def __init__(self, seed: int, names: Sequence[str], normal: int, uniform: int) -> None:
        self._generators = [generator(seed, "noise", name) for name in names]
        count = len(names)
        self._z_BKD = np.empty((self._BLOCK, normal, count), dtype=np.float32)
        self._u_BKD = np.empty((self._BLOCK, uniform, count), dtype=np.float32)
        self._next = self._BLOCK

    def tick(self) -> tuple[F64, F64]:
        """The next normals [K, D] and uniforms [U, D]."""
        if self._next == self._BLOCK:
            for d, stream in enumerate(self._generators):
                shape = self._z_BKD.shape[:2]
                self._z_BKD[:, :, d] = stream.standard_normal(shape, dtype=np.float32)
                self._u_BKD[:, :, d] = stream.random(self._u_BKD.shape[:2], dtype=np.float32)
            self._next = 0
        row = self._next
        self._next += 1
        # Drawn at half the cost, used without a conversion in every operation.
        return self._z_BKD[row].astype(np.float64), self._u_BKD[row].astype(np.float64)
