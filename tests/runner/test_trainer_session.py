"""A worker's session alone, in this process: its guards, skipped steps, and state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
# As test_trainer.py has it: these can be set once in a process.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

import keras  # noqa: E402

from runner.trainer import session as session_module  # noqa: E402
from runner.trainer.checkpoint import Checkpoint, read_file, write_file  # noqa: E402
from runner.trainer.program import Program, ProgramError, load_module  # noqa: E402
from runner.trainer.rules import LossScale  # noqa: E402
from runner.trainer.session import Session, count_collectives  # noqa: E402
from runner.trainer.worker import is_lost_peer  # noqa: E402


def program(**changes: Any) -> Program:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]
    )
    return Program(
        model,
        examples=lambda epoch: tf.data.Dataset.range(8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **changes,
    )


def alone(made: Program, **changes: Any) -> Session:
    settings = {"world": 1, "codec": "onebit", "momentum": 0.9, **changes}
    return Session(made, keras.optimizers.SGD(0.1), **settings)


def batch(value: float = 1.0) -> Any:
    images = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32) * value
    return tf.constant(images), tf.constant([0, 1, 0, 1, 1, 0])


def step(session: Session, given: Any, scale: float = 1.0) -> Any:
    return session.step(given, warm_up=False, scale=scale, weight=1.0, stop=False)


def test_a_last_peer_takes_its_own_gradient() -> None:
    """With one worker, momentum SGD as Keras has it, to rounding: nothing is compressed."""
    ours, theirs = program(), program()
    session = alone(ours)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    for _ in range(4):
        step(session, batch())
        with tf.GradientTape() as tape:
            loss = theirs.batch_loss(batch())
        gradients = tape.gradient(loss, [v.value for v in theirs.model.trainable_variables])
        optimizer.apply(gradients, theirs.model.trainable_variables)
    for mine, other in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    session = alone(program())
    step(session, batch())
    before = {**session.shared_state(), **session.own_state()}
    assert not step(session, batch(float("nan"))).ok
    after = {**session.shared_state(), **session.own_state()}
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)
    assert step(session, batch()).ok


def test_the_loss_scale_leaves_the_update_as_it_is() -> None:
    one, other = program(), program()
    step(alone(one), batch(), 1.0)
    step(alone(other), batch(), 2.0**15)
    for mine, its in zip(one.model.get_weights(), other.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-7)


def test_mixed_float16_overflows_and_finds_a_scale() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        session = alone(program())
        scale, outcomes = LossScale(2.0**24), []
        for _ in range(30):
            outcomes.append(step(session, batch(), scale.value).ok)
            scale = scale.after(outcomes[-1])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert not outcomes[0]
    assert all(outcomes[-5:])
    assert all(a.dtype == np.float32 for k, a in session.shared_state().items() if "weight" in k)


def test_train_step_is_the_users() -> None:
    seen = []

    def train_step(model: Any, given: Any) -> Any:
        seen.append(1)
        return tf.reduce_mean(tf.square(model(given[0])))

    outcome = step(alone(program(train_step=train_step)), batch())
    assert seen
    assert outcome.loss >= 0


def test_neither_loss_nor_train_step_is_named() -> None:
    made = program()
    made.loss = None
    with pytest.raises(ProgramError, match="neither loss nor train_step"):
        made.batch_loss(batch())


def test_state_survives_a_file_bit_for_bit(tmp_path: Path) -> None:
    first = alone(program())
    step(first, batch())
    write_file(tmp_path / "s", Checkpoint(1, first.shared_state(), {}))
    write_file(tmp_path / "o", Checkpoint(1, first.own_state(), {}))
    second = alone(program())
    shared = read_file(tmp_path / "s").arrays
    second.restore(shared, [read_file(tmp_path / "o").arrays])
    assert second.digest() == first.digest()
    for session in (first, second):
        step(session, batch())
    assert second.digest() == first.digest()


def test_a_change_of_membership_takes_the_mean_of_momenta() -> None:
    session = alone(program())
    own = session.own_state()
    others = [{**own, "velocity": np.full_like(own["velocity"], v)} for v in (1.0, 3.0)]
    session.restore(session.shared_state(), others)
    assert (session.own_state()["velocity"] == 2.0).all()


def test_another_models_state_is_refused() -> None:
    session = alone(program())
    state = {**session.shared_state(), "weight/0": np.zeros((3, 3), np.float32)}
    with pytest.raises(ProgramError, match="another model"):
        session.restore(state, [session.own_state()])


class TestHiddenCollectives:
    def reduce(self, x: Any) -> Any:
        return tf.raw_ops.CollectiveReduceV2(
            input=x, group_size=2, group_key=1, instance_key=1, ordering_token=[],
            merge_op="Add", final_op="Id",
        )  # fmt: skip

    def test_are_found_in_functions_within(self) -> None:
        inner = tf.function(self.reduce)
        outer = tf.function(lambda x: inner(x) + 1)
        graph = outer.get_concrete_function(tf.constant([1.0])).graph
        assert count_collectives(graph) == {"reduce": 1, "gather": 0}

    def test_stop_the_run(self) -> None:
        """As Keras' apply_gradients inside strategy.run would bring one in."""
        session = alone(program())
        assert session.check_collectives(batch(), warm_up=False) == {"reduce": 0, "gather": 0}

        def train_step(model: Any, given: Any) -> Any:
            hidden = self.reduce(tf.stop_gradient(given[0]))
            return tf.reduce_mean(model(given[0])) + tf.reduce_mean(hidden)

        with pytest.raises(AssertionError, match="communicates"):
            alone(program(train_step=train_step)).check_collectives(batch(), warm_up=False)

    def test_no_time_out_is_given_to_collectives(self) -> None:
        source = Path(session_module.__file__).read_text()
        code = [line for line in source.splitlines() if not line.strip().startswith("#")]
        assert not any("timeout_seconds=" in line for line in code)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (tf.errors.UnavailableError(None, None, "Connection reset by peer"), True),
        (tf.errors.AbortedError(None, None, "aborted"), True),
        (tf.errors.DeadlineExceededError(None, None, "late"), True),
        (tf.errors.InternalError(None, None, "NCCL: unhandled system error"), True),
        (tf.errors.UnknownError(None, None, "ncclCommInitRank failed: NCCL"), True),
        (tf.errors.InvalidArgumentError(None, None, "shapes"), False),
        (ValueError("unhandled system error"), False),
    ],
)
def test_which_errors_speak_of_a_lost_peer(error: Exception, lost: bool) -> None:
    assert is_lost_peer(error) == lost


@pytest.mark.parametrize("name", ["nothing", "nothing.py:program", "no.such.module:f", "json:nope"])
def test_wrong_programs_are_named(name: str) -> None:
    with pytest.raises(ProgramError):
        load_module(name)
