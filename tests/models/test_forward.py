"""The network that is served is the one that was trained."""

import numpy as np
import pytest

from contract.errors import ConfigError
from models.card import read_model
from models.forward import MAX_BATCH, Forward
from models.network import Scaler, build, tensorflow, to_arrays

pytestmark = pytest.mark.timeout(300)  # TensorFlow is imported

FEATURES = 7


@pytest.fixture(scope="module")
def trained():
    """A network with every weight away from its initial value, and its arrays."""
    tensorflow()  # its pools have to be set before their first use in this process
    rng = np.random.default_rng(1)
    scaler = Scaler(
        rng.normal(size=FEATURES).astype(np.float32),
        rng.uniform(0.5, 2, FEATURES).astype(np.float32),
    )
    network = build(scaler)
    for weight in network.trainable_weights:
        weight.assign(rng.normal(scale=0.4, size=weight.shape))
    return network, to_arrays(network, scaler)


@pytest.mark.parametrize("batch", [1, 5, MAX_BATCH + 3])
def test_forward_is_the_trained_network(trained, batch):
    network, arrays = trained
    x_BTF = np.random.default_rng(batch).normal(size=(batch, 60, FEATURES)).astype(np.float32)
    expected_logits, expected_shares = (np.asarray(a) for a in network(x_BTF, training=False))
    logits, shares = Forward(arrays)(x_BTF)
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(shares, expected_shares, rtol=1e-4, atol=1e-6)
    assert np.ptp(logits) > 1


def test_no_windows_no_logits(trained):
    logits, shares = Forward(trained[1])(np.empty((0, 60, FEATURES), np.float32))
    assert (logits.shape, shares.shape) == ((0, 3), (0, 60))


def test_the_input_is_left_alone(trained):
    x_BTF = np.ones((2, 60, FEATURES), np.float32)
    Forward(trained[1])(x_BTF)
    assert (x_BTF == 1).all()


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("logits/bias", None, "logits/bias is not there"),
        ("logits/bias", np.zeros(4, np.float32), r"logits/bias has shape \(4,\)"),
        ("dense/kernel", np.zeros((64, 32), np.float32), "sizes"),
    ],
)
def test_weights_of_another_network_are_refused(name, array, message):
    arrays = dict(read_model("default").weights)
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    with pytest.raises(ConfigError, match=message):
        Forward(arrays)
