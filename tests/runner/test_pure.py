"""Moves of a job, places, progress, alerts: values in, values out."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.alerts import find_target
from runner.ending import after_exit
from runner.job import (
    ACTIVE,
    ENDED,
    MAX_FAILURES,
    MOVES,
    IllegalMove,
    Job,
    JobSpec,
    JobState,
    backoff_ms,
)
from runner.launchers.base import Exit
from runner.placement import NodeView, Place, choose
from runner.progress import parse, thin
from runner.times import from_rfc3339, to_rfc3339

SPEC = JobSpec("job", ("true",), None, 1, "/tmp/none")
JOB = Job("job-1", SPEC, created_ms=0)


class TestMoves:
    def test_every_state_has_a_row_and_every_end_is_reachable(self) -> None:
        assert set(MOVES) == set(JobState)
        reached = {JobState.QUEUED}
        while True:
            more = reached | {n for s in reached for n in MOVES[s]}
            if more == reached:
                break
            reached = more
        assert reached == set(JobState)

    @given(st.sampled_from(JobState), st.sampled_from(JobState))
    def test_only_the_table_moves_a_job(self, old: JobState, new: JobState) -> None:
        job = replace(JOB, state=old)
        if new in MOVES[old]:
            assert job.to(new).state is new
        else:
            with pytest.raises(IllegalMove):
                job.to(new)

    @given(st.integers(0, 10**6), st.floats(0, 1))
    def test_backoff_is_bounded(self, failures: int, jitter: float) -> None:
        assert 500 <= backoff_ms(failures, jitter) <= 30_000


EXITS = st.builds(
    Exit, st.sampled_from([None, -15, -9, 0, 1, 137]), st.booleans(), st.sampled_from([None, "no"])
)


class TestEndings:
    @given(
        st.sampled_from(sorted(ACTIVE)),
        st.lists(EXITS, min_size=1, max_size=4),
        st.booleans(),
        st.integers(0, MAX_FAILURES),
    )
    def test_every_end_is_a_legal_move(
        self, state: JobState, exits: list[Exit], cancelled: bool, failures: int
    ) -> None:
        cancelled = cancelled and state is JobState.STOPPING
        job = replace(JOB, state=state, cancelled=cancelled, failures=failures)
        after = after_exit(job, exits, 1000, jitter=0.5, last_output="")
        assert after.state in ENDED | {JobState.QUEUED}
        assert (after.ended_ms is not None) == (after.state in ENDED)
        if after.state is JobState.QUEUED:
            assert after.places == ()
            assert not cancelled
        if after.state is JobState.FAILED:
            assert after.error

    def test_a_crash_is_tried_again_and_then_given_up(self) -> None:
        job = replace(JOB, state=JobState.RUNNING)
        after = after_exit(job, [Exit(1, False)], 0, jitter=1, last_output="boom")
        assert after.state is JobState.QUEUED
        assert after.not_before_ms == 1000
        assert after.error == "the process ended with exit code 1; its last output: boom"
        last = after_exit(
            replace(job, failures=MAX_FAILURES - 1), [Exit(-11, False)], 0, jitter=1, last_output=""
        )
        assert (last.state, last.error) == (JobState.FAILED, "the process was ended by signal 11")

    def test_the_rank_that_failed_is_blamed_and_not_those_stopped_for_it(self) -> None:
        job = replace(JOB, state=JobState.RUNNING)
        after = after_exit(job, [Exit(-15, True), Exit(3, False)], 0, jitter=1, last_output="")
        assert after.exit_code == 3


NODES = [
    NodeView("a", ("a0", "a1")),
    NodeView("b", ("b0",)),
    NodeView("c"),
    NodeView("d", ("d0",), cordoned=True),
]
NAMES = st.sampled_from(["a", "b", "c", "d"])
VIEWS = st.lists(
    st.builds(
        NodeView,
        NAMES,
        st.sampled_from([(), ("0",), ("0", "1", "2")]),
        st.booleans(),
        st.frozensets(st.sampled_from(["0", "1", "9"])),
    ),
    max_size=4,
    unique_by=lambda view: view.name,
)
PLACES = st.builds(Place, NAMES, st.sampled_from([None, "0", "1"]))


class TestPlacement:
    @given(VIEWS, st.integers(1, 4), st.lists(PLACES), st.lists(NAMES, max_size=2))
    def test_never_a_cordoned_or_taken_card(
        self, nodes: list[NodeView], count: int, taken: list[Place], only: list[str]
    ) -> None:
        found = choose(nodes, count, taken=taken, only_nodes=only)
        assert found == choose(nodes, count, taken=taken, only_nodes=only)
        if found is None:
            return
        assert len(found) == count
        cards = [place for place in found if place.device is not None]
        assert len(set(cards)) == len(cards)
        by_name = {node.name: node for node in nodes}
        for place in found:
            node = by_name[place.node]
            assert not node.cordoned
            assert not only or place.node in only
            if place.device is None:
                assert not node.devices
                assert not node.cordoned_devices
            else:
                assert place.device in node.devices
                assert place.device not in node.cordoned_devices
                assert place not in taken

    def test_spreads_over_nodes(self) -> None:
        assert choose(NODES, 3, taken=()) == (Place("a", "a0"), Place("b", "b0"), Place("c", None))

    def test_a_rig_with_a_sick_card_comes_last(self) -> None:
        nodes = [NodeView("a", ("a0", "a1"), cordoned_devices=frozenset({"a0"})), *NODES[1:]]
        assert choose(nodes, 1, taken=[Place("b", "b0"), Place("c", None)]) == (Place("c", None),)

    def test_preferred_cards_and_nodes_come_first(self) -> None:
        assert choose(NODES, 2, taken=(), prefer=["b", "a/a1"]) == (
            Place("b", "b0"),
            Place("a", "a1"),
        )

    def test_a_node_without_a_list_takes_any_number(self) -> None:
        assert choose([NodeView("c")], 3, taken=[Place("c", None)]) == (Place("c", None),) * 3

    def test_limits(self) -> None:
        assert choose(NODES, 1, taken=(), only_devices=["a/a1"], only_nodes=["a"]) == (
            Place("a", "a1"),
        )
        assert choose(NODES, 1, taken=(), only_nodes=["d"]) is None
        assert choose(NODES, 3, taken=(), only_nodes=["a", "b"], only_devices=["a0", "b0"]) is None


class TestProgress:
    @given(st.binary(max_size=80))
    def test_no_line_breaks_it(self, line: bytes) -> None:
        parse(line, now_ms=1, node="a", device=None, generation=1)

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "[]",
            "{}",
            '{"step": -1}',
            '{"step": true}',
            '{"step": 1.5}',
            '{"step": "1"}',
            "NaN",
            "[" * 5000,
        ],
    )
    def test_what_is_no_report(self, line: str) -> None:
        assert parse(line.encode(), now_ms=1, node="a", device=None, generation=1) is None

    @pytest.mark.parametrize(
        "loss",
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "1e400",
            "true",
            '"2"',
            "9" * 400,
        ],
    )
    def test_a_loss_that_is_no_number_is_none(self, loss: str) -> None:
        line = f'{{"step": 3, "loss": {loss}}}'.encode()
        point = parse(line, now_ms=7, node="a", device="d", generation=2)
        assert point is not None
        assert (point.step, point.loss, point.at_ms) == (3, None, 7)

    @pytest.mark.parametrize("at", [1767225600.5, "2026-01-01T00:00:00.500Z"])
    def test_both_ways_to_write_a_time(self, at: object) -> None:
        line = json.dumps({"step": 1, "at": at, "node": "liar"}).encode()
        point = parse(line, now_ms=7, node="a", device=None, generation=1)
        assert point is not None
        assert (point.at_ms, point.node) == (1767225600500, "a")

    @given(st.lists(st.integers(0, 3), max_size=200).map(sorted), st.integers(2, 50))
    def test_thinning_keeps_order_edges_and_bound(self, groups: list[int], limit: int) -> None:
        points = list(enumerate(groups))
        kept = thin(points, limit, lambda p: p[1])
        assert len(kept) <= limit
        assert kept == sorted(kept)
        if len(points) > limit >= 8:
            assert len(kept) == limit
            for group in set(groups):
                members = [p for p in points if p[1] == group]
                assert members[0] in kept
                assert members[-1] in kept

    @given(st.integers(0, 4_000_000_000_000))
    def test_times_survive(self, ms: int) -> None:
        assert from_rfc3339(to_rfc3339(ms) or "") == ms


VIEW = [NodeView("rig1", ("GPU-1a", "GPU-1b")), NodeView("rig2"), NodeView("lab/rig3", ("GPU-3",))]


class TestAlerts:
    @pytest.mark.parametrize(
        ("labels", "node", "device"),
        [
            ({"device": "GPU-1b"}, "rig1", "GPU-1b"),
            (
                {"UUID": "GPU-1b", "device": "nvidia0", "gpu": "0", "Hostname": "x"},
                "rig1",
                "GPU-1b",
            ),
            ({"uuid": "GPU-1a"}, "rig1", "GPU-1a"),
            ({"gpu": "1", "device": "nvidia1", "Hostname": "rig1"}, "rig1", "GPU-1b"),
            ({"node": "rig1"}, "rig1", None),
            ({"node": "rig2", "device": "GPU-new"}, "rig2", "GPU-new"),
            ({"node": "rig3", "site": "lab"}, "lab/rig3", None),
            ({"node": "rig1", "device": "nvidia0"}, "rig1", None),
        ],
    )
    def test_matches(self, labels: dict[str, str], node: str, device: str | None) -> None:
        target = find_target(labels, VIEW, ())
        assert (target.node, target.device) == (node, device)

    @pytest.mark.parametrize(
        "labels",
        [
            {},
            {"alertname": "Watchdog"},
            {"device": "eth0"},
            {"node": "rig1", "device": "sda"},
            {"node": "nobody"},
            {"node": "rig2", "gpu": "0"},
            {"alertname": "DatasourceNoData", "device": "GPU-1a"},
        ],
    )
    def test_does_not_guess(self, labels: dict[str, str]) -> None:
        target = find_target(labels, VIEW, ())
        assert target.node is None
        assert target.problem

    def test_a_card_known_from_a_running_job(self) -> None:
        target = find_target({"device": "card"}, VIEW, [Place("rig2", "card")])
        assert (target.node, target.device) == ("rig2", "card")


def test_a_machine_that_refuses_is_asked_again_and_a_command_that_ran_too() -> None:
    spec = JobSpec("job", ("x",), None, 1, "/c")
    new = Job("job-1", spec, 0, JobState.STARTING, generation=1)
    missing = Exit(None, asked=False, error="cannot start 'x': not found")
    refused = Exit(None, asked=False, error="no memory", refused=True)

    def state(job: Job, end: Exit) -> JobState:
        return after_exit(job, [end], 0, jitter=0.5, last_output="").state

    assert state(new, missing) is JobState.FAILED
    assert state(new, refused) is JobState.QUEUED
    assert state(replace(new, reported_generation=1, generation=2), missing) is JobState.QUEUED
    assert state(replace(new, failures=4), refused) is JobState.FAILED
