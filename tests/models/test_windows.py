"""Windows, labels and the split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import RigcanaryError
from contract.minute import COLUMN_INDEX, COLUMNS
from models.augment import augment
from models.split import GAP_MS, choose_split
from models.windows import Outcome, alarm_instants_ms, gather, labels, scorable

MIN = 60_000
SAMPLES = COLUMN_INDEX["samples"]


def rows(minutes, empty=()):
    minute = np.array(minutes, dtype=np.int64)
    values = np.full((len(minute), len(COLUMNS)), np.nan, np.float32)
    values[:, SAMPLES] = 12
    values[:, 1] = minute  # tells rows apart
    values[np.isin(minute, empty), SAMPLES] = 0
    return minute, values


def test_a_window_needs_half_its_rows_and_its_newest():
    minute, values = rows(range(100))
    assert scorable(minute, values)[0] == 29
    minute, values = rows([*range(30), 61, 90])
    assert minute[scorable(minute, values)].tolist() == [29]
    minute, values = rows(range(100), empty=[50])
    assert 50 in scorable(minute, values)  # its rig spoke, but not of the card
    minute, values = rows([*range(50), *range(51, 100)])
    assert 50 not in minute[scorable(minute, values)]


@given(st.sets(st.integers(0, 300), min_size=1), st.randoms())
def test_scorable_and_gather_against_a_loop(minutes, random):
    minutes = sorted(minutes)
    empty = [m for m in minutes if random.random() < 0.1]
    minute, values = rows(minutes, empty)
    ends = scorable(minute, values)
    holding = set(minutes) - set(empty)
    expected = [m for m in minutes if sum(w in holding for w in range(m - 59, m + 1)) >= 30]
    assert minute[ends].tolist() == expected
    windows = gather(minute, values, ends)
    assert windows.shape == (len(ends), 60, len(COLUMNS))
    for window, end in zip(windows, expected, strict=True):
        for t, m in enumerate(range(end - 59, end + 1)):
            assert window[t, 1] == m if m in minutes else np.isnan(window[t]).all()


def test_the_alarm_instant_is_the_end_of_the_minute():
    assert alarm_instants_ms(np.array([5, 6]), np.array([1])).tolist() == [7 * MIN]


def test_labels_are_half_open_at_the_instant_and_closed_at_the_horizon():
    at = np.array([739, 740, 939, 940, 984, 985, 999, 1000]) * MIN
    positive, known = labels(at, Outcome(1000 * MIN), 999 * MIN)
    assert known.all()
    for i, horizon in enumerate((15, 60, 240)):
        expected = [bool(t < 1000 * MIN <= t + horizon * MIN) for t in at.tolist()]
        assert positive[:, i].tolist() == expected


@pytest.mark.parametrize(
    "outcome", [Outcome(), Outcome(moved_ms=1000 * MIN), Outcome(2000 * MIN, "k", 1000 * MIN)]
)
def test_what_follows_a_move_or_the_recording_is_not_known(outcome):
    at = np.array([700, 760, 761, 985, 986]) * MIN
    positive, known = labels(at, outcome, 1000 * MIN)
    assert not positive.any()
    assert known[:, 2].tolist() == [True, True, False, False, False]
    assert known[:, 0].tolist() == [True, True, True, True, False]


@given(st.integers(2, 30), st.integers(1, 4), st.integers(0, 99), st.booleans())
def test_the_split_shares_neither_cards_nor_times(nodes, cards, seed, by_time):
    spans = [(f"n{n}c{c}", f"n{n}", 0, 3000 * MIN) for n in range(nodes) for c in range(cards)]
    split = choose_split(spans, seed, time_share=0.6 if by_time else None)
    at = np.arange(30, 3001, 7, dtype=np.int64) * MIN
    trained, validated = {}, {}
    for device, *_ in spans:
        train, validate = split.part(device, at)
        assert not (train & validate).any()
        if train.any():
            trained[device] = at[train]
        if validate.any():
            validated[device] = at[validate]
    assert trained
    assert validated
    assert not set(trained) & set(validated)
    if nodes >= 8:
        assert not {d.split("c")[0] for d in trained} & {d.split("c")[0] for d in validated}
    if by_time:
        last_label = max(a.max() for a in trained.values()) + GAP_MS
        first_row = min(a.min() for a in validated.values()) - 60 * MIN
        assert first_row >= last_label


def test_one_card_cannot_be_split():
    with pytest.raises(RigcanaryError, match="two cards"):
        choose_split([("a", "n", 0, MIN)], 0)


def test_augmented_windows_keep_their_newest_row_and_enough_of_them():
    rng = np.random.default_rng(1)
    windows = np.ones((300, 60, len(COLUMNS)), np.float32)
    changed = augment(windows, rng, 1.0)
    present = ~np.isnan(changed[:, :, SAMPLES])
    assert present[:, -1].all()
    assert (present.sum(axis=1) >= 30).all()
    assert (np.isnan(changed).any(axis=(1, 2))).mean() > 0.9
