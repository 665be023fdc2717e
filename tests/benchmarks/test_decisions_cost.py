"""The benchmark of deciding runs, and counts what it says."""

from benchmarks.decisions import measure


def test_it_counts_devices_and_decisions() -> None:
    result = measure(800, 3)
    assert result["devices"] == 800
    assert result["ratio"] > 0
    # One node asks; its eight cards are moved within 5 % of 800.
    assert (result["decisions"], result["waiting"]) == (16, 0)
    assert result["state_bytes_per_device"] < 2_000
