"""Batches of minutes to close: everything once, in order, and never ahead of scoring."""

from hypothesis import given
from hypothesis import strategies as st

from contract.minute import MINUTE_MS
from stream.edge.closing import BATCH, MAX_UNSCORED_MINUTES, batches


@given(st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 5_000)), max_size=300))
def test_batches_hold_everything_once_in_order_and_no_wide_span(
    due: set[tuple[str, int]],
) -> None:
    ordered = sorted((key, minute * MINUTE_MS) for key, minute in due)
    found = list(batches(ordered))
    assert sorted(m for batch in found for m in batch) == ordered
    for key in "abc":
        mine = [minute for batch in found for k, minute in batch if k == key]
        assert mine == sorted(mine)
    for batch in found:
        assert 0 < len(batch) <= BATCH
        for key in {k for k, _ in batch}:
            minutes = [minute for k, minute in batch if k == key]
            assert max(minutes) - min(minutes) <= MAX_UNSCORED_MINUTES * MINUTE_MS
