"""Histories carried between scorings: several minutes of a node in a batch are entered in order."""

import numpy as np
from fake_worker import FakePredictor

from stream.edge.card_histories import Histories, entered, packed, unpacked


class Adding(FakePredictor):
    """Remembers the order of what came in: each minute the sums are ten times the last plus it."""

    history_sums, history_version = 2, "a1"

    def enter(self, sums_BS, rows_BTC):
        return sums_BS * 10 + rows_BTC[:, -1, :2]


def windows(*values):
    return np.array(values, np.float32).reshape(-1, 1, 1) * np.ones((1, 60, 3), np.float32)


def test_stored_text_comes_back():
    sums = np.array([[1.5, -2], [0, 3e7]], np.float32)
    np.testing.assert_array_equal(unpacked(Adding(), packed(Adding(), sums)), sums)


def test_what_another_version_or_a_broken_writer_stored_begins_anew():
    texts = ["", "a0:AAAAAAAAAAA=", "a1:AAAA"]
    assert not unpacked(Adding(), texts).any()


def test_minutes_of_a_node_in_one_batch_are_entered_one_after_the_other():
    one, two = packed(Adding(), np.array([[1, 1], [2, 2]], np.float32))
    jobs = [
        Histories("lab/a", ("x", "y"), (one, two)),
        Histories("lab/b", ("x",), ("",)),
        Histories("lab/a", ("x", "y"), (one, two)),
        Histories("lab/a", ("y",), (two,)),
    ]
    sums = entered(Adding(), jobs, windows(1, 2, 9, 3, 4, 5))
    assert sums[:, 0].tolist() == [11, 22, 9, 113, 224, 2245]


def test_no_devices():
    assert entered(Adding(), [Histories("lab/a", (), ())], windows()).shape == (0, 2)
