"""Bounds on what a stranger can make the worker remember."""

import pytest

from stream import roster
from stream.roster import FORGET_MS, MAX_DEVICES_A_NODE, Roster


def names(start: int, count: int) -> tuple[str, ...]:
    return tuple(f"GPU-{i}" for i in range(start, start + count))


def test_a_node_that_invents_devices_is_stopped_at_the_limit() -> None:
    made = Roster()
    admitted = [made.admit("lab/rig1", names(256 * i, 256), i) for i in range(10)]
    assert admitted == [True, True] + [False] * 8
    assert made.admit("lab/rig1", names(0, 256), 11)


def test_replaced_cards_make_room_after_an_hour() -> None:
    made = Roster()
    assert made.admit("lab/rig1", names(0, MAX_DEVICES_A_NODE), 0)
    assert not made.admit("lab/rig1", names(1000, 1), FORGET_MS - 1)
    assert made.admit("lab/rig1", names(1000, 1), FORGET_MS)


def test_devices_that_go_on_speaking_are_not_forgotten() -> None:
    made = Roster()
    for at in range(0, 3 * FORGET_MS, 5_000):
        assert made.admit("lab/rig1", names(0, MAX_DEVICES_A_NODE), at)
    assert not made.admit("lab/rig1", names(1000, 1), 3 * FORGET_MS)


def test_the_number_of_nodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "MAX_NODES", 2)
    made = Roster()
    assert [made.admit(f"lab/rig{i}", (), 0) for i in (0, 1, 2, 0)] == [True, True, False, True]
