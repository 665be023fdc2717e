"""The trained network in NumPy: features → logits and attention, without TensorFlow.

The same arithmetic as :func:`models.network.build` with dropout off; a test holds the two
together. A worker that needs no TensorFlow starts in a second and is a fifth of the size.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.errors import ConfigError
from models.windows import HORIZONS_MINUTES

Array = npt.NDArray[np.float32]

MAX_BATCH: Final = 512
"""Windows computed at once; more are split, so that memory stays bounded (about 80 MB)."""
_SHAPES: Final = {
    "scaler.mean": "F",
    "scaler.std": "F",
    "lstm/lstm_cell/kernel": "FG",
    "lstm/lstm_cell/recurrent_kernel": "UG",
    "lstm/lstm_cell/bias": "G",
    "key/kernel": "UA",
    "key/bias": "A",
    "energy/kernel": "AI",
    "energy/bias": "I",
    "dense/kernel": "JD",
    "dense/bias": "D",
    "logits/kernel": "DH",
    "logits/bias": "H",
}
"""Of each array its axes: F features, U units, G gates (4 U), A attention, J context and last
state (2 U), D dense, H horizons, I one."""


class Forward:
    """The network of one model folder. Immutable, so safe to call from any thread."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the arrays that :func:`models.network.to_arrays` wrote.

        Raises:
            ConfigError: when they are not those of this network.
        """
        w = _checked(arrays)
        kernel_FG, bias_G = w["lstm/lstm_cell/kernel"], w["lstm/lstm_cell/bias"]
        # Standardisation is linear: it goes into the input kernel.
        kernel_FG = kernel_FG / w["scaler.std"][:, None]
        bias_G = bias_G - w["scaler.mean"] @ kernel_FG
        # Keras has the gates input, forget, cell, output; with the three sigmoids side by side
        # and σ(x) = (1 + tanh(x/2)) / 2, one call of tanh serves all four.
        units = self._units = len(bias_G) // 4
        order = np.r_[: 2 * units, 3 * units : 4 * units, 2 * units : 3 * units]
        half = np.repeat(np.array([0.5, 1.0], np.float32), [3 * units, units])
        self._kernel_FG = np.ascontiguousarray(kernel_FG[:, order] * half)
        self._recurrent_UG = np.ascontiguousarray(
            w["lstm/lstm_cell/recurrent_kernel"][:, order] * half
        )
        self._bias_G = bias_G[order] * half
        self._weights = w

    def __call__(self, x_BTF: Array) -> tuple[Array, Array]:
        """Logits [B, H] and the attention's shares [B, T] of features [B, T, F]."""
        logits = np.empty((len(x_BTF), len(HORIZONS_MINUTES)), np.float32)
        shares = np.empty(x_BTF.shape[:2], np.float32)
        for at in range(0, len(x_BTF), MAX_BATCH):
            part = slice(at, at + MAX_BATCH)
            logits[part], shares[part] = self._run(x_BTF[part])
        return np.nan_to_num(logits), shares

    def _run(self, x_BTF: Array) -> tuple[Array, Array]:
        w = self._weights
        hidden_TBU = self._lstm(x_BTF)
        minutes, batch, units = hidden_TBU.shape
        key = np.tanh(hidden_TBU.reshape(-1, units) @ w["key/kernel"] + w["key/bias"])
        energy_TB = (key @ w["energy/kernel"] + w["energy/bias"]).reshape(minutes, batch)
        share_TB = np.exp(energy_TB - energy_TB.max(axis=0))
        share_TB /= share_TB.sum(axis=0)
        context_BU = np.einsum("tb,tbu->bu", share_TB, hidden_TBU)
        joined = np.concatenate([context_BU, hidden_TBU[-1]], axis=1)
        dense = np.maximum(joined @ w["dense/kernel"] + w["dense/bias"], 0)
        return dense @ w["logits/kernel"] + w["logits/bias"], share_TB.T

    def _lstm(self, x_BTF: Array) -> Array:
        """Every hidden state [T, B, U]."""
        batch, minutes, count = x_BTF.shape
        units = self._units
        gates_TBG = x_BTF.transpose(1, 0, 2).reshape(-1, count) @ self._kernel_FG
        gates_TBG += self._bias_G
        gates_TBG = gates_TBG.reshape(minutes, batch, -1)
        hidden_TBU = np.empty((minutes, batch, units), np.float32)
        hidden = np.zeros((batch, units), np.float32)
        cell = np.zeros((batch, units), np.float32)
        for t in range(minutes):
            gates = gates_TBG[t]
            gates += hidden @ self._recurrent_UG
            np.tanh(gates, out=gates)
            sigmoids, candidate = gates[:, : 3 * units], gates[:, 3 * units :]
            sigmoids += 1
            sigmoids *= 0.5
            cell *= sigmoids[:, units : 2 * units]
            cell += sigmoids[:, :units] * candidate
            hidden = np.multiply(np.tanh(cell), sigmoids[:, 2 * units :], out=hidden_TBU[t])
        return hidden_TBU


def _checked(arrays: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, Array]:
    sizes: dict[str, int] = {"I": 1, "H": len(HORIZONS_MINUTES)}
    checked = {}
    for name, axes in _SHAPES.items():
        array = arrays.get(name)
        if array is None:
            raise ConfigError(f"the weights are not those of this network: {name} is not there")
        if array.ndim != len(axes) or any(
            sizes.setdefault(axis, size) != size
            for axis, size in zip(axes, array.shape, strict=True)
        ):
            raise ConfigError(
                f"the weights are not those of this network: {name} has shape {array.shape}"
            )
        checked[name] = np.asarray(array, np.float32)
    if sizes["G"] != 4 * sizes["U"] or sizes["J"] != 2 * sizes["U"]:
        raise ConfigError(f"the weights are not those of this network: sizes {sizes}")
    return checked
