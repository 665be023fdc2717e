"""The outbox on disk: what it keeps, gives out, drops and survives."""

import os
import resource
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.edge import outbox as module
from agents.edge import segments
from agents.edge.outbox import Outbox, Stored
from agents.edge.state_folder import state_folder
from agents.settings import AgentSettings, OutboxSettings
from contract.errors import ConfigError

TOPIC = "rigcanary/v1/lab/rig1/telemetry"


class FakeTime:
    def __init__(self) -> None:
        self.wall = 1_767_225_600.0
        self.now = 100.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.now += seconds


def make(
    folder: Path, time: FakeTime | None = None, size: int = 1 << 20, age: float = 3600.0
) -> Outbox:
    time = time or FakeTime()
    return Outbox(folder / "outbox", size, age, wall=lambda: time.wall, monotonic=lambda: time.now)


def drain(outbox: Outbox) -> list[Stored]:
    out = []
    while (stored := outbox.next()) is not None:
        out.append(stored)
    return out


def numbers(outbox: Outbox) -> list[int]:
    return [int(stored.payload) for stored in drain(outbox)]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "outbox").glob("*.seg"))


def test_a_new_run_finds_what_was_accepted_in_order(tmp_path: Path) -> None:
    first = make(tmp_path)
    for i in range(5):
        assert first.store(TOPIC, b"%d" % i)
    assert first.append(TOPIC, b"5")
    # Nothing is closed: the process was killed. Its lock goes with it.
    os.close(first._lock_file)
    again = make(tmp_path)
    assert len(again) == 6
    found = drain(again)
    assert [(s.topic, int(s.payload)) for s in found] == [(TOPIC, i) for i in range(6)]
    for stored in found:
        again.done(stored.ticket)
    assert len(again) == 0
    again.close()
    assert len(make(tmp_path)) == 0


def test_when_all_is_delivered_the_file_is_cut_back(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    for i in range(1000):
        ticket = outbox.append(TOPIC, b"%d" % i)
        assert ticket is not None
        outbox.done(ticket)
    (file,) = files(tmp_path)
    assert file.stat().st_size == len(segments.MAGIC)
    assert outbox.dropped.total() == 0


def test_a_message_that_was_not_sent_after_all_comes_again_at_its_place(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    tickets = [outbox.append(TOPIC, b"%d" % i) for i in range(4)]
    outbox.store(TOPIC, b"4")
    assert numbers(outbox) == [4]
    for index in (2, 1):
        ticket = tickets[index]
        assert ticket is not None
        outbox.give_back(ticket)
    assert numbers(outbox) == [1, 2]
    assert len(outbox) == 5


def test_the_size_limit_drops_the_oldest_and_counts(tmp_path: Path) -> None:
    outbox = make(tmp_path, size=64 * 1024)
    for i in range(1000):
        assert outbox.store(TOPIC, b"%0500d" % i)
    assert outbox.size_bytes <= 64 * 1024
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 64 * 1024
    left = numbers(outbox)
    assert left == list(range(1000 - len(left), 1000))
    assert outbox.dropped == {"size": 1000 - len(left)}


def test_the_age_limit_drops_the_oldest_over_restarts_too(tmp_path: Path) -> None:
    time = FakeTime()
    outbox = make(tmp_path, time, age=600)
    for i in range(240):
        assert outbox.store(TOPIC, b"%d" % i)
        time.pass_by(5)
    assert outbox.oldest_age_seconds() <= 600 + 600 / 16 + 5
    dropped = outbox.dropped["age"]
    assert 240 - dropped == len(outbox)
    outbox.close()
    time.pass_by(300)
    outbox = make(tmp_path, time, age=600)
    left = numbers(outbox)
    assert left
    assert min(left) >= 180 - 8
    assert max(left) == 239


def test_a_wall_clock_that_steps_drops_nothing(tmp_path: Path) -> None:
    time = FakeTime()
    outbox = make(tmp_path, time, age=600)
    for i in range(10):
        outbox.store(TOPIC, b"%d" % i)
        time.wall += 86_400 * (1 if i % 2 else -1)
    assert numbers(outbox) == list(range(10))


def test_ten_minutes_of_outage_hold_no_message_in_memory(tmp_path: Path) -> None:
    time = FakeTime()
    outbox = make(tmp_path, time, size=64 << 20, age=86_400)
    payload = os.urandom(6000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(120 * 20):
        assert outbox.store(TOPIC, payload)
        time.pass_by(5)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 2048, "14 MB of messages were stored"
    assert len(drain(outbox)) == 120 * 20


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_torn_end_loses_only_the_last_record(tmp_path: Path, cut: int) -> None:
    outbox = make(tmp_path)
    for i in range(3):
        outbox.store(TOPIC, b"%d" % i)
    outbox.close()
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-cut])
    again = make(tmp_path)
    assert numbers(again) == [0, 1]
    assert again.store(TOPIC, b"9")
    assert numbers(again) == [9]
    assert again.dropped["damaged"] == 1


def test_a_flipped_bit_is_found_and_a_strange_file_left_alone(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    for i in range(3):
        outbox.store(TOPIC, b"%d" % i)
    outbox.close()
    (file,) = files(tmp_path)
    damaged = bytearray(file.read_bytes())
    damaged[len(segments.MAGIC) + 60] ^= 1
    file.write_bytes(damaged)
    strange = file.with_name("0000000077.seg")
    strange.write_bytes(b"something else altogether")
    again = make(tmp_path)
    assert len(numbers(again)) < 3
    assert strange.read_bytes() == b"something else altogether"
    assert again.store(TOPIC, b"9")
    assert file.with_name("0000000078.seg").exists()


@given(st.binary(max_size=400), st.text(max_size=40))
def test_a_record_comes_back_as_it_was(tmp_path_factory, payload: bytes, topic: str) -> None:
    file = tmp_path_factory.mktemp("record") / "x.seg"
    try:
        record = segments.pack(topic, payload, 5)
    except UnicodeEncodeError:
        return
    file.write_bytes(segments.MAGIC + record)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        (found,) = segments.records(descriptor)
    finally:
        os.close(descriptor)
    assert (found.topic, found.payload, found.accepted_ms) == (topic, payload, 5)


def test_a_full_disk_is_said_once_counted_and_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    time = FakeTime()
    outbox = make(tmp_path, time)
    assert outbox.store(TOPIC, b"%0100d" % 0)
    # A limit of the process on the size of a file stands in for the full disk: a write that
    # crosses it is cut short, the next one fails.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        for _ in range(20):
            assert not outbox.store(TOPIC, b"%0100d" % 1)
            time.pass_by(module.RETRY_SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert outbox.disk_errors == 20
    assert sum("kept in memory" in r.message for r in caplog.records) == 1
    time.pass_by(module.RETRY_SECONDS)
    assert outbox.store(TOPIC, b"%0100d" % 2)
    assert outbox.trouble is None
    assert "works again" in caplog.records[-1].message
    assert numbers(outbox) == [0, 2]
    outbox.close()
    assert numbers(make(tmp_path)) == [0, 2]


def test_a_folder_that_cannot_be_made_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    time = FakeTime()
    outbox = make(tmp_path / "state", time)
    for _ in range(3):
        time.pass_by(60)
        assert outbox.append(TOPIC, b"1") is None
    assert outbox.disk_errors == 4
    assert len(caplog.records) == 1
    (tmp_path / "state").unlink()
    time.pass_by(60)
    assert outbox.store(TOPIC, b"1")


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    first = make(tmp_path)
    with pytest.raises(ConfigError, match="in use by another agent"):
        make(tmp_path)
    first.close()
    make(tmp_path).close()


def test_where_the_state_lies() -> None:
    real = AgentSettings(site="lab", node="rig1")
    environment = {"HOME": "/h", "XDG_STATE_HOME": "/x", "STATE_DIRECTORY": "/s:/t"}
    assert state_folder(real, environment) == Path("/s")
    del environment["STATE_DIRECTORY"]
    assert state_folder(real, environment) == Path("/x/rigcanary/agent/lab/rig1")
    del environment["XDG_STATE_HOME"]
    assert state_folder(real, environment) == Path("/h/.local/state/rigcanary/agent/lab/rig1")
    assert state_folder(real, {}) is None
    sim = AgentSettings(sources=("sim",))
    assert state_folder(sim, environment) is None
    assert state_folder(AgentSettings(sources=("sim",), state=Path("s")), {}) == Path("s")
    assert OutboxSettings().enabled


class OutboxMachine(RuleBasedStateMachine):
    """Against a list: nothing is lost, nothing is given out twice, the backlog is in order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.outbox = self.open()
        self.sent = 0
        self.waiting: list[int] = []
        self.out: dict[int, Stored | None] = {}

    def open(self) -> Outbox:
        outbox = Outbox(Path(self.folder.name) / "outbox", 1 << 20, 3600.0)
        # Small, so that the machine crosses many borders between segments.
        outbox._segment_bytes = 200
        return outbox

    def teardown(self) -> None:
        self.outbox.close()
        self.folder.cleanup()

    @rule()
    def store(self) -> None:
        assert self.outbox.store(TOPIC, b"%d" % self.sent)
        self.waiting.append(self.sent)
        self.sent += 1

    @rule()
    def append(self) -> None:
        ticket = self.outbox.append(TOPIC, b"%d" % self.sent)
        assert ticket is not None
        self.out[self.sent] = Stored(TOPIC, b"", ticket)
        self.sent += 1

    @rule()
    def take(self) -> None:
        stored = self.outbox.next()
        if not self.waiting:
            assert stored is None
            return
        assert stored is not None
        assert int(stored.payload) == self.waiting[0]
        self.out[self.waiting.pop(0)] = stored

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        stored = self.out.pop(number)
        assert stored is not None
        self.outbox.done(stored.ticket)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        stored = self.out.pop(number)
        assert stored is not None
        self.outbox.give_back(stored.ticket)
        self.waiting = sorted([*self.waiting, number])

    @rule()
    def restart(self) -> None:
        owed = {*self.waiting, *self.out}
        self.outbox.close()
        self.outbox = self.open()
        found = drain(self.outbox)
        kept = [int(stored.payload) for stored in found]
        assert owed <= set(kept), "accepted and not delivered, and yet lost"
        assert kept == sorted(set(kept))
        # What was delivered may come again while its neighbours are not; the stream knows it.
        for stored in found:
            self.outbox.give_back(stored.ticket)
        self.waiting, self.out = kept, {}

    @invariant()
    def counts(self) -> None:
        assert len(self.outbox) == len(self.waiting) + len(self.out)
        assert self.outbox.backlog == len(self.waiting)
        assert self.outbox.dropped.total() == 0


TestOutboxMachine = OutboxMachine.TestCase
