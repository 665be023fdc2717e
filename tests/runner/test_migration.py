"""The migration's state machine, driven by facts in any order."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from contract.decision import CAUSES
from runner.job import JobState
from runner.migration import (
    DONE,
    STEP_NAMES,
    WITHDRAWABLE,
    Command,
    Facts,
    Limits,
    Migration,
    MigrationState,
    advance,
    withdraw,
)
from runner.placement import Place

OLD, NEW = Place("rig1", "a"), Place("rig2", "b")
LIMITS = Limits(checkpoint_ms=1000, confirm_ms=5000)
REQUEST = Migration(
    "mig-1",
    "episode-1",
    "rig1",
    "a",
    "predicted",
    "webhook",
    0,
    job="job-1",
    generation=1,
    from_places=(OLD,),
)
RUNNING = Facts(
    now_ms=0,
    job_state=JobState.RUNNING,
    alive=True,
    on_device=True,
    generation=1,
    places=(OLD,),
    free_places=(NEW,),
    progressed=True,
)
QUEUED = replace(RUNNING, job_state=JobState.QUEUED, alive=False, on_device=False, places=())
MOVED = replace(
    RUNNING,
    job_state=JobState.STARTING,
    on_device=False,
    generation=2,
    places=(NEW,),
    progressed=False,
)
FACTS = st.builds(
    Facts,
    now_ms=st.integers(0, 20_000),
    job_state=st.sampled_from(JobState),
    alive=st.booleans(),
    on_device=st.booleans(),
    generation=st.integers(1, 3),
    places=st.just((NEW,)),
    free_places=st.sampled_from([None, (NEW,)]),
    progressed=st.booleans(),
    clean=st.booleans(),
    queues=st.booleans(),
)


def drive(migration: Migration, *facts: Facts) -> tuple[Migration, list[Command | None]]:
    commands = []
    for fact in facts:
        migration, command = advance(migration, fact, LIMITS, fact.now_ms)
        commands.append(command)
    return migration, commands


def outcomes(migration: Migration) -> dict[str, str]:
    return {step.name: step.outcome for step in migration.steps}


def test_the_whole_way() -> None:
    stopping = replace(RUNNING, job_state=JobState.STOPPING, now_ms=10)
    done, commands = drive(
        REQUEST,
        RUNNING,
        stopping,
        replace(QUEUED, now_ms=20),
        replace(MOVED, now_ms=30),
        replace(MOVED, now_ms=40, progressed=True),
    )
    assert commands == [Command.STOP, Command.STOP, None, None, None]
    assert done.state is MigrationState.COMPLETED
    assert (done.from_places, done.to_places, done.completed_ms) == ((OLD,), (NEW,), 40)
    assert [(s.name, s.outcome) for s in done.steps] == [(name, "done") for name in STEP_NAMES]
    assert [s.at_ms for s in done.steps] == [0, 0, 20, 20, 30, 40]


def test_without_a_job_it_is_a_cordon_only() -> None:
    done, command = advance(replace(REQUEST, job=None), None, LIMITS, 5)
    assert (done.state, done.completed_ms, command) == (MigrationState.COMPLETED, 5, None)
    assert outcomes(done) == {"cordon": "done"}


def test_a_lost_card_is_not_asked_for_a_checkpoint() -> None:
    lost = replace(REQUEST, cause="lost")
    done, commands = drive(lost, RUNNING, QUEUED, MOVED, replace(MOVED, progressed=True))
    assert commands[0] is Command.KILL
    assert Command.STOP not in commands
    assert outcomes(done)["checkpoint"] == "skipped"
    assert done.state is MigrationState.COMPLETED


def test_nowhere_to_go_leaves_the_job_alone_unless_the_card_is_lost() -> None:
    full = replace(RUNNING, free_places=None)
    waiting, commands = drive(REQUEST, full, full, full)
    assert (waiting.state, commands) == (MigrationState.PLACING, [None] * 3)
    _, commands = drive(replace(REQUEST, cause="node_lost"), full)
    assert commands == [Command.KILL]


def test_no_end_in_time_is_killed_and_said_so() -> None:
    late = replace(RUNNING, now_ms=1000, job_state=JobState.STOPPING)
    stuck, commands = drive(REQUEST, RUNNING, late)
    assert commands == [Command.STOP, Command.KILL]
    assert stuck.state is MigrationState.STOPPING
    assert outcomes(stuck)["checkpoint"] == "failed"


def test_an_end_that_was_not_clean_is_no_checkpoint() -> None:
    stopped, _ = drive(REQUEST, RUNNING, replace(QUEUED, clean=False))
    assert outcomes(stopped)["checkpoint"] == "failed"


def test_no_progress_after_the_move_fails() -> None:
    done, _ = drive(REQUEST, RUNNING, QUEUED, MOVED, replace(MOVED, now_ms=5000))
    assert done.state is MigrationState.FAILED
    assert done.error == "the job made no progress after the move"


def test_a_job_that_ends_meanwhile_needs_no_move() -> None:
    ended = replace(QUEUED, job_state=JobState.COMPLETED)
    done, _ = drive(REQUEST, RUNNING, ended)
    assert (done.state, outcomes(done)["confirm"]) == (MigrationState.COMPLETED, "skipped")


def test_withdrawn_until_the_job_runs_elsewhere() -> None:
    full = replace(RUNNING, free_places=None)
    waiting, _ = drive(REQUEST, full)
    assert withdraw(waiting, 9).state is MigrationState.WITHDRAWN
    ending, _ = drive(REQUEST, RUNNING)
    taken_back = withdraw(ending, 9)
    assert (taken_back.state, outcomes(taken_back)["confirm"]) == ("withdrawn", "skipped")
    elsewhere, _ = drive(REQUEST, RUNNING, QUEUED, MOVED)
    assert withdraw(elsewhere, 9) is elsewhere


def test_nowhere_to_go_queues_a_job_that_wants_it() -> None:
    full = replace(RUNNING, free_places=None, queues=True)
    queued = replace(QUEUED, free_places=None, queues=True)
    waiting, commands = drive(REQUEST, full, queued, queued)
    assert commands[0] is Command.STOP
    assert waiting.state is MigrationState.STARTING
    assert outcomes(waiting)["place"] == "skipped"
    done, _ = drive(waiting, MOVED, replace(MOVED, progressed=True))
    assert (done.state, done.to_places) == (MigrationState.COMPLETED, (NEW,))


@given(st.sampled_from(CAUSES), st.lists(FACTS, max_size=12))
def test_any_facts_in_any_order(cause: str, facts: list[Facts]) -> None:
    migration = replace(REQUEST, cause=cause)
    lost = cause in {"lost", "node_lost"}
    for fact in facts:
        before = migration
        migration, command = advance(migration, fact, LIMITS, fact.now_ms)
        assert migration.steps[: len(before.steps)] == before.steps, "history only grows"
        again, repeated = advance(migration, fact, LIMITS, fact.now_ms)
        if before.done:
            assert migration == before
            assert command is None
        if command is Command.STOP:
            assert not lost
            assert again.state in {MigrationState.CHECKPOINTING, MigrationState.STOPPING}
        if command is Command.KILL:
            assert fact.alive
            assert lost or before.state in {MigrationState.CHECKPOINTING, MigrationState.STOPPING}
        if repeated is Command.STOP:
            assert command is Command.STOP, "a repeated fact asks for nothing new"
        names = [step.name for step in migration.steps]
        assert len(set(names)) == len(names)
        assert names == sorted(names, key=STEP_NAMES.index)
        assert (migration.completed_ms is not None) == (migration.state in DONE)
        assert (migration.error is not None) == (migration.state is MigrationState.FAILED)
        taken_back = withdraw(migration, fact.now_ms)
        assert (taken_back != migration) == (migration.state in WITHDRAWABLE)
