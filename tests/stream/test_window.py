"""Windows of sixty minute rows out of a ring."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contract.minute import COLUMNS, MINUTE_MS, WINDOW_MINUTES
from stream.window import RING_MINUTES, WindowStore

START = 1_767_225_600_000


def row(value: float) -> np.ndarray:
    return np.full((1, len(COLUMNS)), float(value))


@given(st.permutations(range(80)), st.sets(st.integers(0, 79), max_size=40))
def test_a_window_is_the_last_sixty_rows_whatever_the_order(
    order: list[int], absent: set[int]
) -> None:
    store = WindowStore()
    minutes = [m for m in order if m not in absent] or [79]
    for m in minutes:
        store.put("lab/rig1", START + m * MINUTE_MS, ("GPU-a",), row(m + 1), 5.0)
    newest = max(minutes)
    windows = store.windows("lab/rig1", START + newest * MINUTE_MS)
    expected = [m + 1 if m in minutes else np.nan for m in range(newest - 59, newest + 1)]
    np.testing.assert_array_equal(windows.rows_DTC[0, :, 0], expected)
    held = sum(m in minutes for m in range(newest - 59, newest + 1))
    assert windows.completeness_D[0] == held / WINDOW_MINUTES
    assert windows.enough_D[0] == (held >= 30)


def test_a_corrected_row_replaces_the_old_one_and_a_row_too_old_changes_nothing() -> None:
    store = WindowStore()
    newest = START + RING_MINUTES * MINUTE_MS
    store.put("lab/rig1", newest, ("GPU-a",), row(1), 5.0)
    store.put("lab/rig1", newest, ("GPU-a",), row(2), 5.0)
    store.put("lab/rig1", START, ("GPU-a",), row(9), 5.0)  # the same slot of the ring
    assert store.windows("lab/rig1", newest).rows_DTC[0, -1, 0] == 2


def test_devices_that_come_later_get_a_place_and_replaced_ones_leave_theirs() -> None:
    store = WindowStore()
    names = tuple(f"GPU-{i}" for i in range(20))
    for name in names:
        store.put("lab/rig1", START, (name,), row(1), 5.0)
    assert store.devices("lab/rig1") == 20
    later = START + (RING_MINUTES + 1) * MINUTE_MS
    store.put("lab/rig1", later, ("GPU-new",), row(5), 5.0)
    assert store.devices("lab/rig1") == 20
    windows = store.windows("lab/rig1", later)
    assert windows.devices == ("GPU-new",)
    assert np.nansum(windows.rows_DTC[0, :, 0]) == 5


def test_a_single_empty_minute_of_a_slow_cadence_is_no_gap_and_two_are() -> None:
    empty = {10, 20, 21, 40}
    seen = {}
    for interval_seconds in (5.0, 60.0):
        store = WindowStore()
        for m in range(60):
            if m not in empty:
                at = START + m * MINUTE_MS
                store.put("lab/rig1", at, ("GPU-a",), row(m + 1), interval_seconds)
        windows = store.windows("lab/rig1", START + 59 * MINUTE_MS)
        seen[interval_seconds] = windows.rows_DTC[0, :, 0]
        assert windows.completeness_D[0] == (56 if interval_seconds == 5 else 59) / 60
    np.testing.assert_array_equal(seen[5.0][[10, 20, 21, 40]], [np.nan] * 4)
    np.testing.assert_array_equal(seen[60.0][[10, 20, 21, 40]], [10, 20, np.nan, 40])
