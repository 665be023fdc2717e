"""Codecs, held against plain numpy; several workers are simulated in one process."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")
# As test_trainer.py has it: these can be set once in a process.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

from runner.trainer.codecs import Layout, OneBit, Plain, make_codec  # noqa: E402

SIZES = (100, 40, 7, 64)  # rows of 32: 4 (the last of 4), 2 (the last of 8), small, 2
LAYOUT = Layout(SIZES, row_length=32, smallest=32)
WORLD = 3
CODEC = OneBit(WORLD, LAYOUT)
N = sum(SIZES)
Floats = npt.NDArray[np.float32]


def exchange(
    codec: Any, gradients_WN: Floats, residuals: list[Any]
) -> tuple[Floats, list[Any], Floats, bool]:
    """One step of all workers: the mean, their residuals, the controls' mean, ok."""
    controls = [tf.constant([float(w), float(w == 1)]) for w in range(len(gradients_WN))]
    encoded = [
        codec.encode(tf.constant(g), c, r)
        for g, c, r in zip(gradients_WN, controls, residuals, strict=True)
    ]
    messages = tf.stack([message for message, _ in encoded])
    got = codec.decode(tf.reduce_sum(messages, 0) if codec.collective == "sum" else messages)
    return got.mean_N.numpy(), [r for _, r in encoded], got.controls_K.numpy(), bool(got.ok)


def zeros(codec: Any, world: int = WORLD) -> list[Any]:
    return [tf.zeros(codec.residual_shape) for _ in range(world)]


def draw(seed: int, world: int = WORLD) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, (world, N)).astype(np.float32)


def one_bit_by_numpy(gradient_N: Floats) -> Floats:
    """Sign and mean magnitude of each row, by the plainest means."""
    out, at = np.empty(N, np.float32), 0
    for size in SIZES:
        part = gradient_N[at : at + size]
        if size < LAYOUT.smallest:
            out[at : at + size] = part
        else:
            for begin in range(0, size, LAYOUT.row_length):
                row = part[begin : begin + LAYOUT.row_length]
                scale = np.abs(row).mean()
                out[at + begin : at + begin + len(row)] = np.where(row > 0, scale, -scale)
        at += size
    return out


def test_one_bit_is_sign_and_mean_of_each_row() -> None:
    gradients = draw(1)
    mean, _, controls, ok = exchange(CODEC, gradients, zeros(CODEC))
    np.testing.assert_allclose(
        mean, np.mean([one_bit_by_numpy(g) for g in gradients], axis=0), rtol=2e-5, atol=1e-6
    )
    np.testing.assert_allclose(controls, [1.0, 1 / 3], rtol=1e-6)
    assert ok


def test_the_message_is_one_word_for_32_elements_and_a_few_floats() -> None:
    message, _ = CODEC.encode(tf.zeros([N]), tf.zeros([2]), tf.zeros(CODEC.residual_shape))
    rows = 4 + 2 + 2
    assert message.dtype == tf.int32
    assert message.shape == (rows * 32 // 32 + rows + 7 + 2,)
    sizes = (1 << 20,)
    big = make_codec("onebit", 2, sizes, 1024)
    message, _ = big.encode(tf.zeros(sizes), tf.zeros([2]), tf.zeros(big.residual_shape))
    assert message.shape[0] < sizes[0] / 25


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 6), st.floats(1e-6, 1e6))
def test_what_is_not_sent_is_owed(seed: int, steps: int, size: float) -> None:
    """Sum of what was applied + mean of what is owed = mean of all gradients, always."""
    residuals, sent, given_ = zeros(CODEC), np.zeros(N), np.zeros(N)
    for step in range(steps):
        gradients = draw(seed + step) * np.float32(size)
        mean, residuals, _, ok = exchange(CODEC, gradients, residuals)
        assert ok
        sent += mean
        given_ += gradients.mean(0, dtype=np.float64)
    owed = LAYOUT.join(tf.reduce_mean(tf.stack(residuals), 0), tf.zeros([LAYOUT.small])).numpy()
    np.testing.assert_allclose(sent + owed, given_, rtol=1e-3, atol=2e-4 * size)


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from([0, 1, 3]))
def test_an_all_zero_row_stays_zero(seed: int, tensor: int) -> None:
    gradients = draw(seed)
    at = sum(SIZES[:tensor])
    gradients[:, at : at + SIZES[tensor]] = 0
    residuals = zeros(CODEC)
    for _ in range(3):
        mean, residuals, _, _ = exchange(CODEC, gradients, residuals)
        assert not mean[at : at + SIZES[tensor]].any()


def test_padding_owes_nothing() -> None:
    _, residuals, _, _ = exchange(CODEC, draw(5), zeros(CODEC))
    columns = np.arange(LAYOUT.row_length)[None] >= LAYOUT.counts_R[:, None]
    assert columns.any()
    assert not residuals[0].numpy()[columns].any()


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.integers(0, WORLD - 1),
    st.integers(0, N - 1),
    st.sampled_from([np.nan, np.inf, -np.inf]),
    st.sampled_from(["onebit", "naive", "none", "fp16"]),
)
def test_one_worker_that_is_not_finite_is_seen_by_all(
    seed: int, worker: int, place: int, value: float, name: str
) -> None:
    codec = CODECS[name]
    gradients = draw(seed)
    assert exchange(codec, gradients, zeros(codec))[3]
    gradients[worker, place] = value
    assert not exchange(codec, gradients, zeros(codec))[3]


CODECS = {
    "onebit": CODEC,
    "naive": OneBit(WORLD, LAYOUT, feedback=False),
    "none": Plain(WORLD, half=False),
    "fp16": Plain(WORLD, half=True),
}


@given(st.integers(0, 2**31))
def test_none_is_the_mean_and_fp16_nearly(seed: int) -> None:
    gradients = draw(seed)
    wanted = gradients.mean(0)
    plain, _, controls, _ = exchange(CODECS["none"], gradients, zeros(CODECS["none"]))
    np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(controls, [1.0, 1 / 3], rtol=1e-5)
    half, _, _, _ = exchange(CODECS["fp16"], gradients, zeros(CODECS["fp16"]))
    np.testing.assert_allclose(half, wanted, rtol=0, atol=4e-3)


def test_naive_forgets() -> None:
    codec = CODECS["naive"]
    _, residuals, _, _ = exchange(codec, draw(3), zeros(codec))
    assert not residuals[0].numpy().any()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=20)
def test_rows_and_back(sizes: list[int], seed: int) -> None:
    layout = Layout(tuple(sizes), row_length=32, smallest=50)
    flat = np.random.default_rng(seed).normal(size=sum(sizes)).astype(np.float32)
    rows, small = layout.split(tf.constant(flat))
    assert rows.shape == (len(layout.counts_R), 32)
    assert layout.counts_R.sum() + layout.small == sum(sizes)
    np.testing.assert_array_equal(layout.join(rows, small).numpy(), flat)


def test_wrong_names_and_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="no codec is named 'zip'"):
        make_codec("zip", 2, [10], 32)
    with pytest.raises(ValueError, match="multiple of 32"):
        Layout((10,), row_length=33)
