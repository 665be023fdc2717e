"""Calls that hang are left behind: lanes, guarded sources, tools in children."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.guarded import (
    MAX_STUCK,
    MAX_STUCK_PER_LANE,
    GuardedSource,
    Lanes,
    deadline_seconds,
    source_deadline_seconds,
)
from agents.messages import Envelope
from agents.program import Program
from agents.sampler import Sampler
from agents.source import DeviceReading, Instant, NotHere, ReadFailed, ReadLate


@pytest.fixture
def hang() -> Iterator[Callable[[], Any]]:
    """A call that does not return before the test has ended."""
    released = threading.Event()
    yield lambda: released.wait(60)
    released.set()


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_lane_hangs_and_the_others_have_their_values(hang: Callable[[], Any]) -> None:
    lanes: Lanes[int] = Lanes("t", 0.05)

    def fails() -> int:
        raise ValueError("of the device")

    outcomes = lanes.run({"a": hang, "b": lambda: 2, "c": fails})
    assert list(outcomes) == ["a", "b", "c"]
    assert outcomes["b"].get() == 2
    with pytest.raises(ValueError, match="of the device"):
        outcomes["c"].get()
    with pytest.raises(ReadLate, match="no answer for"):
        outcomes["a"].get()
    assert (lanes.stuck, lanes.left_behind) == (1, 1)


def test_a_stuck_lane_is_late_at_once_and_not_called_again(hang: Callable[[], Any]) -> None:
    clock = FakeClock()
    lanes: Lanes[int] = Lanes("t", 0.05, clock)
    calls: list[int] = []

    def begin() -> Any:
        calls.append(1)
        return hang()

    lanes.run({"a": begin})
    clock.now += 30
    assert lanes.run({"a": begin})["a"].late_seconds == 30
    assert len(calls) == 1


def test_a_lane_answers_again_when_its_call_has_returned() -> None:
    lanes: Lanes[int] = Lanes("t", 0.05)
    gate = threading.Event()
    lanes.run({"a": lambda: int(gate.wait(60))})
    gate.set()
    deadline = time.monotonic() + 30
    while lanes.stuck:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert lanes.run({"a": lambda: 7})["a"].get() == 7
    assert lanes.left_behind == 1


def test_a_recovered_driver_is_found_by_a_fresh_call_though_the_old_one_never_returns(
    hang: Callable[[], Any],
) -> None:
    clock = FakeClock()
    lanes: Lanes[int] = Lanes("t", 0.05, clock)
    lanes.run({"a": hang})
    clock.now += 40
    assert lanes.run({"a": lambda: 7})["a"].late_seconds is not None
    clock.now += 40
    assert lanes.run({"a": lambda: 7})["a"].get() == 7
    assert lanes.stuck == 1


def test_calls_left_behind_are_bounded(hang: Callable[[], Any]) -> None:
    clock = FakeClock()
    lanes: Lanes[int] = Lanes("t", 0.01, clock)
    for _ in range(10):
        lanes.run({"a": hang})
        clock.now += 100_000
    assert lanes.stuck == MAX_STUCK_PER_LANE
    lanes.run({f"card {i}": hang for i in range(MAX_STUCK)})
    before = threading.active_count()
    assert lanes.run({"one more": hang})["one more"].late_seconds is not None
    assert lanes.stuck <= MAX_STUCK + MAX_STUCK_PER_LANE
    assert threading.active_count() == before


def test_deadlines_fit_the_interval() -> None:
    for interval in (0.1, 1.0, 5.0, 60.0):
        assert 2 * deadline_seconds(interval) <= source_deadline_seconds(interval) < interval


class Hanging:
    """A source whose read hangs when told."""

    name, enumerates = "hanging", True

    def __init__(self, hang: Callable[[], Any], *devices: str) -> None:
        self.hang, self.devices, self.hangs = hang, devices, False
        self.closed = False

    def read(self, now: Instant) -> list[DeviceReading]:
        if self.hangs:
            self.hang()
        return [{"device": device, "temperature_celsius": 50.0} for device in self.devices]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("devices", "state"), [(("a",), "unresponsive"), (("a", "b"), "unknown")])
def test_a_source_that_hangs_as_a_whole(
    hang: Callable[[], Any], devices: tuple[str, ...], state: str
) -> None:
    slow, other = Hanging(hang, *devices), Hanging(hang, "other")
    other.name = "other"
    guarded = GuardedSource(slow, 0.05)
    sampler = Sampler(Envelope("lab", "rig1", "boot"), [guarded, other], 5.0)
    ticks = [sampler.tick(Instant(1.0e9, 0.0))]
    slow.hangs = True
    ticks += [sampler.tick(Instant(1.0e9 + 5 * i, 5.0 * i)) for i in range(1, 4)]
    states = [[d["state"] for d in t.telemetry["devices"]] for t in ticks if t.telemetry]
    assert states == [["ok"] * (len(devices) + 1)] + [[state] * len(devices) + ["ok"]] * 3
    assert [len(tick.notices) for tick in ticks] == [0, 1, 0, 0]
    assert sampler.reads["hanging", "late"] == 3
    sampler.close()
    assert other.closed
    assert not slow.closed  # closing would hang as reading does


def test_a_guarded_source_passes_on_what_its_source_raises() -> None:
    class Broken(Hanging):
        def read(self, now: Instant) -> list[DeviceReading]:
            raise NotHere("no tool")

    source = GuardedSource(Broken(lambda: None), 5.0)
    with pytest.raises(NotHere, match="no tool"):
        source.read(Instant(0.0, 0.0))
    source.close()


# --- tools ---------------------------------------------------------------------------------------


def test_a_program_gives_its_output() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    output = Program([sys.executable, "-c", code], 30.0).run()
    assert (output.stdout, output.exit_code, output.first_line()) == (b"out\n", 3, "err")


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 3600 & echo $! >{pids}; echo $$ >>{pids}; sleep 3600"
    program = Program(["sh", "-c", script], 0.5)
    with pytest.raises(ReadLate, match="sh did not end within 0.5 s"):
        program.run()
    assert program.killed == 1
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + 30
        while _runs(pid):
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_program_that_is_absent_or_not_a_program(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="the program no-such-tool is not installed"):
        Program(["no-such-tool"], 1.0).run()
    file = tmp_path / "tool"
    file.write_text("")
    with pytest.raises(ReadFailed, match="cannot be started: Permission denied"):
        Program([str(file)], 1.0).run()
