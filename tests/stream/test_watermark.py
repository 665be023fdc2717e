"""When minutes close, and what becomes of repeated, late and too many samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import START_MS, sample

from contract.minute import LATENESS_MS, MINUTE_MS
from stream import watermark
from stream.validate import Sample
from stream.watermark import Arrival, MinuteBook


def at(offset_ms: int, seq: int | None = None, node: str = "rig1") -> Sample:
    return sample(offset_ms if seq is None else seq, START_MS + offset_ms, {}, node=node)


@pytest.mark.parametrize(("newest_ms", "closes"), [(74_999, False), (75_000, True)])
def test_a_minute_closes_when_its_node_is_15_s_past_its_end(newest_ms: int, closes: bool) -> None:
    book = MinuteBook()
    book.add(at(0))
    book.add(at(newest_ms))
    assert (("lab/rig1", START_MS) in book.due()) is closes


@pytest.mark.parametrize(("newest_ms", "closes"), [(179_999, False), (180_000, True)])
def test_a_silent_nodes_minute_closes_120_s_past_its_end(newest_ms: int, closes: bool) -> None:
    book = MinuteBook()
    book.add(at(0, node="silent"))
    book.add(at(newest_ms, node="other"))
    assert (("lab/silent", START_MS) in book.due()) is closes


def test_one_clock_that_runs_ahead_closes_no_other_nodes_minutes() -> None:
    book = MinuteBook()
    for tick in range(12):
        for node in ("rig1", "rig2", "rig3"):
            book.add(at(tick * 5_000, node=node))
        book.add(at(tick * 5_000 + 290_000, node="ahead"))
    assert {key for key, _ in book.due()} <= {"lab/ahead"}


def test_the_boundary_belongs_to_the_next_minute() -> None:
    book = MinuteBook()
    book.add(at(59_999))
    book.add(at(60_000))
    everything = book.due(everything=True)
    assert everything == [("lab/rig1", START_MS), ("lab/rig1", START_MS + MINUTE_MS)]


@pytest.mark.parametrize(("behind_ms", "arrival"), [(0, Arrival.LATE), (1, Arrival.HELD)])
def test_samples_are_late_ten_minutes_after_their_minute(behind_ms: int, arrival: Arrival) -> None:
    book = MinuteBook()
    book.add(at(MINUTE_MS + LATENESS_MS - behind_ms))
    assert book.add(at(1_000)) is arrival


def test_a_repeated_message_is_a_duplicate_and_a_new_boot_is_not() -> None:
    book = MinuteBook()
    assert book.add(at(0, seq=1)) is Arrival.HELD
    assert book.add(at(0, seq=1)) is Arrival.DUPLICATE
    reboot = sample(1, START_MS, {}, boot_id="boot-b")
    assert book.add(reboot) is Arrival.HELD


def test_messages_of_one_minute_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark, "MAX_MESSAGES_A_MINUTE", 3)
    book = MinuteBook()
    arrivals = [book.add(at(i)) for i in range(5)]
    assert arrivals == [Arrival.HELD] * 3 + [Arrival.TOO_MANY] * 2
    assert len(book) == 3


@given(st.lists(st.tuples(st.integers(0, 400_000), st.sampled_from("abc")), max_size=60))
def test_every_sample_is_taken_exactly_once_or_was_late(arrivals: list[tuple[int, str]]) -> None:
    book = MinuteBook()
    held: list[int] = []
    taken: list[int] = []
    for seq, (offset, node) in enumerate(arrivals):
        if book.add(at(offset, seq=seq, node=node)) is Arrival.HELD:
            held.append(seq)
        for node_minute in book.due():
            taken += [s.seq for s in book.take(node_minute)]
    for node_minute in book.due(everything=True):
        taken += [s.seq for s in book.take(node_minute)]
    assert sorted(taken) == held
    assert len(book) == 0


def test_nodes_not_heard_of_are_forgotten() -> None:
    book = MinuteBook()
    book.add(at(0))
    book.take(("lab/rig1", START_MS))
    book.forget_before(START_MS + 1)
    assert book.node_watermark_ms("lab/rig1") == 0
