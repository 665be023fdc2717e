"""Loss parity: one bit with error feedback against float32, and the naive sign beside it.

Workers are simulated in one process, with the codecs that real ones use; data, seeds, steps and
learning rates are equal. In full (``scripts/proof trainer-parity``) five seeds on both examples.
"""

import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.trainer.program import load_module

tf = pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("RIGCANARY_PROOF_FULL") == "1"
SEEDS = range(1, 6) if FULL else range(1, 3)
WORLD = 2
T_95 = {2: 12.706, 5: 2.776}
"""Student's t for a two-sided interval of 95 % with n − 1 degrees of freedom."""
# Example, steps in full and reduced, batch a worker, learning rate, momentum.
CASES = {
    "digits": ("train_digits", 400 if FULL else 150, 16, 0.05, 0.9),
    "chars": ("train_chars", 400 if FULL else 40, 16, 0.015, 0.9),
}
ARMS = ("none", "onebit", "naive")


def train(name: str, codec_name: str, seed: int) -> float:
    """Loss on data that was not trained with, after all steps."""
    import keras

    from runner.trainer.codecs import make_codec

    example, steps, batch_size, rate, momentum = CASES[name]
    keras.utils.set_random_seed(seed)
    module, _ = load_module(f"{ROOT}/examples/{example}.py:program")
    program = module.program(seed)
    variables = list(program.model.trainable_variables)
    sizes = [int(np.prod(v.shape)) for v in variables]
    codecs = [make_codec(c, WORLD, sizes, 1024) for c in ("none", codec_name)]
    warm_steps = steps // 10 if codec_name == "onebit" else 0
    residuals = [tf.Variable(tf.zeros(codecs[1].residual_shape)) for _ in range(WORLD)]
    velocities = [tf.Variable(tf.zeros([sum(sizes)])) for _ in range(WORLD)]

    def update(batch: Any, codec: Any, compresses: bool) -> None:
        messages = []
        for worker in range(WORLD):
            part = tf.nest.map_structure(
                lambda t, w=worker: t[w * batch_size : (w + 1) * batch_size], batch
            )
            with tf.GradientTape() as tape:
                loss = program.batch_loss(part)
            gradients = tape.gradient(loss, [v.value for v in variables])
            flat = tf.concat([tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients], 0)
            velocities[worker].assign(momentum * velocities[worker] + flat)
            message, residual = codec.encode(
                velocities[worker], tf.stack([loss, 0.0]), residuals[worker].read_value()
            )
            if compresses:
                residuals[worker].assign(residual)
            messages.append(message)
        collected = tf.add_n(messages) if codec.collective == "sum" else tf.stack(messages)
        mean = tf.split(codec.decode(collected).mean_N, sizes)
        for variable, gradient in zip(variables, mean, strict=True):
            variable.value.assign_sub(rate * tf.reshape(gradient, variable.shape))

    warm = tf.function(lambda batch: update(batch, codecs[0], False))
    real = tf.function(lambda batch: update(batch, codecs[1], codec_name != "none"))
    step = epoch = 0
    while step < steps:
        for batch in program.examples(epoch).batch(WORLD * batch_size, drop_remainder=True):
            prepared = batch if program.prepare is None else program.prepare(batch)
            (warm if step < warm_steps else real)(prepared)
            step += 1
            if step == steps:
                break
        epoch += 1
    return held_out_loss(name, module, program)


def held_out_loss(name: str, module: Any, program: Any) -> float:
    if name == "digits":
        images, labels = module.load_digits(return_X_y=True)
        inputs, wanted = images[1437:].astype("float32") / 16, labels[1437:]
    else:
        text = module.letters()
        held = text[len(text) * 9 // 10 :]
        starts = np.random.default_rng(0).integers(0, len(held) - 34, 512)
        windows = held[starts[:, None] + np.arange(33)]
        inputs, wanted = windows[:, :-1], windows[:, 1:]
    return float(program.loss(wanted, program.model(inputs, training=False)))


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", CASES)
def test_one_bit_learns_as_float32_does(name: str) -> None:
    losses = {arm: [train(name, arm, seed) for seed in SEEDS] for arm in ARMS}
    lines = []
    for arm in ARMS:
        excess = [a - b for a, b in zip(losses[arm], losses["none"], strict=True)]
        half = T_95[len(excess)] * statistics.stdev(excess) / len(excess) ** 0.5
        mean, over = statistics.fmean(losses[arm]), statistics.fmean(excess)
        lines.append(f"{name} {arm}: loss {mean:.4f}, over float32 {over:+.4f} ± {half:.4f}")
    print("\n" + "\n".join(lines))
    start = np.log(10 if name == "digits" else 96)
    means = {arm: statistics.fmean(losses[arm]) for arm in ARMS}
    assert means["none"] < 0.8 * start, "it learns at all"
    # Parity: what one bit costs is small beside what was learnt.
    assert means["onebit"] - means["none"] < 0.05 * (start - means["none"])
