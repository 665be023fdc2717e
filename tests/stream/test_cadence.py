"""Another cadence, or a sample more, must not look like missing telemetry."""

import numpy as np
import pytest

from contract.minute import COLUMN_INDEX, COLUMNS
from stream.cadence import USUAL_SAMPLES, at_usual_cadence, without_undeclared_cadence

TEMPERATURE_COUNT = COLUMN_INDEX["temperature_celsius_count"]
TEMPERATURE = COLUMN_INDEX["temperature_celsius_mean"]


def rows(samples: float, counted: float) -> np.ndarray:
    rows_DC = np.full((1, len(COLUMNS)), np.nan)
    rows_DC[0, : COLUMN_INDEX["temperature_celsius_mean"]] = 0
    rows_DC[0, 0] = rows_DC[0, COLUMN_INDEX["samples_ok"]] = samples
    rows_DC[0, TEMPERATURE_COUNT], rows_DC[0, TEMPERATURE] = counted, 60.0
    return rows_DC


@pytest.mark.parametrize(
    ("samples", "interval", "expected"),
    [(12, 5, 12), (13, 5, 12), (60, 1, 12), (61, 1, 12), (1, 60, 12), (2, 60, 12), (6, 5, 6),
     (30, 1, 6), (60, 5, 12)],
)  # fmt: skip
def test_counts_are_as_at_five_seconds(samples: int, interval: float, expected: float) -> None:
    found = at_usual_cadence(rows(samples, samples / 2), interval)
    assert found[0, 0] == found[0, COLUMN_INDEX["samples_ok"]] == expected
    assert found[0, TEMPERATURE_COUNT] == expected / 2
    assert found[0, TEMPERATURE] == 60.0


def test_the_usual_cadence_is_left_as_it_is() -> None:
    usual = rows(12, 11)
    np.testing.assert_array_equal(at_usual_cadence(usual, 5.0), usual)


def test_a_slow_cadence_that_was_not_declared_is_no_gap() -> None:
    window = np.full((2, 60, len(COLUMNS)), np.nan, np.float32)
    for t in range(60):
        window[0, t] = rows(2 if t == 40 else 1, 1)[0]
        window[1, t] = rows(3 if t > 50 else 12, 3)[0]
    window[0, [7, 20, 21]] = np.nan
    found = without_undeclared_cadence(window)
    there = np.arange(60) != 21
    assert (found[0, there, 0] == USUAL_SAMPLES).all()
    assert np.isnan(found[0, 21, 0])  # two minutes in a row are a gap at any cadence
    assert found[0, 40, TEMPERATURE_COUNT] == 6
    # A rig that used to send twelve and now sends three does have a gap.
    np.testing.assert_array_equal(found[1], window[1])
