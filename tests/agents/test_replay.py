"""A data set out over a real broker: every row once, status and will as its rigs', no loss."""

import itertools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.edge import replay as replay_module
from agents.edge.replay import Replay, ReplayOptions, _Pace
from agents.endpoints import host_port, speed_of, unix_seconds
from contract.errors import ConfigError, RigcanaryError
from contract.message import check_event, check_telemetry
from rigcanary.cli import run

ROOT = Path(__file__).parents[2]
T0 = 1_767_225_600
Wait = Callable[..., None]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Five nodes of two cards, ten minutes at 5 s; one card is lost after five minutes."""
    rows = [
        (
            T0 + 5 * i,
            f"rig{n}",
            f"GPU-{n}-{d}",
            50.0 + d,
            "lost" if (n, d) == (0, 0) and i > 60 else "ok",
        )
        for n in range(5)
        for i in range(120)
        for d in range(2)
    ]
    ts, node, device, celsius, state = zip(*rows, strict=True)
    table = pa.table(
        {
            "ts": pa.array([t * 1000 for t in ts], pa.timestamp("ms", "UTC")),
            "node": node,
            "device": device,
            "temperature_celsius": celsius,
            "state": state,
        }
    )
    folder = tmp_path / "fleet"
    folder.mkdir()
    pq.write_table(table, folder / "telemetry.parquet")
    return folder


def account(recorder: Any) -> Counter[tuple[str, str, float]]:
    return Counter(
        (m["node"], d["device"], m["ts"]) for m in recorder.of("telemetry") for d in m["devices"]
    )


def test_every_row_arrives_once_with_its_time(
    broker: Any, recorder: Any, wait: Wait, dataset: Path
) -> None:
    result = Replay(dataset, ReplayOptions(broker.settings(), None)).run()
    assert result.complete
    assert (result.rows, result.samples_sent, result.samples_acknowledged) == (1200, 1200, 1200)
    assert (result.messages_sent, result.messages_acknowledged) == (600, 600)
    wait(lambda: len(recorder.of("telemetry")) == 600)
    counts = account(recorder)
    assert len(counts) == 1200
    assert set(counts.values()) == {1}
    for message in recorder.of("telemetry"):
        check_telemetry(message, 1_800_000_000_000)
        assert message["site"] == "replay"
        assert message["interval_seconds"] == 5.0
    for n in range(5):
        own = [m for m in recorder.of("telemetry") if m["node"] == f"rig{n}"]
        assert [m["seq"] for m in own] == list(range(120))
        assert len({m["boot_id"] for m in own}) == 1
    wait(lambda: len(recorder.of("status")) == 10)
    states = Counter(s["state"] for s in recorder.of("status"))
    assert states == {"online": 5, "offline": 5}
    (event,) = recorder.of("events")
    check_event(event, 1_800_000_000_000)
    assert (event["type"], event["device"], event["ts"]) == ("device_lost", "GPU-0-0", T0 + 305)


def test_more_nodes_than_connections_share_them(
    broker: Any, recorder: Any, wait: Wait, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "MAX_CONNECTIONS", 2)
    result = Replay(dataset, ReplayOptions(broker.settings(), None)).run()
    assert result.complete
    wait(lambda: len(recorder.of("status")) == 10)
    last = {topic: body["state"] for topic, body, _ in recorder.received if "status" in topic}
    assert len(last) == 5
    assert set(last.values()) == {"offline"}
    assert sum(account(recorder).values()) == 1200


def test_now_ends_at_the_present_and_each_replay_is_a_new_boot(
    broker: Any, recorder: Any, wait: Wait, dataset: Path
) -> None:
    options = ReplayOptions(broker.settings(), None, now=True, site="pumps")
    for present in (1_790_000_000.0, 1_790_000_500.0):
        Replay(dataset, options, wall=itertools.repeat(present).__next__).run()
    wait(lambda: len(recorder.of("telemetry")) == 1200)
    messages = recorder.of("telemetry")
    assert {m["site"] for m in messages} == {"pumps"}
    by_boot: dict[str, list[float]] = {}
    for message in messages:
        by_boot.setdefault(message["boot_id"], []).append(message["ts"])
    assert len(by_boot) == 10
    assert {max(ts) for ts in by_boot.values()} == {1_790_000_000.0, 1_790_000_500.0}
    assert {max(ts) - min(ts) for ts in by_boot.values()} == {595.0}


def test_a_broker_that_restarts_loses_nothing_that_was_not_acknowledged(
    broker: Any, make_recorder: Any, wait: Wait, dataset: Path
) -> None:
    stop = threading.Event()
    running = Replay(dataset, ReplayOptions(broker.settings(), 300.0), stop)
    thread = threading.Thread(target=running.run)
    first = make_recorder()
    thread.start()
    wait(lambda: len(first.of("telemetry")) > 50)
    broker.stop()
    broker.start()
    second = make_recorder()
    wait(lambda: not thread.is_alive(), 60)
    assert running.result.complete
    assert running.result.samples_acknowledged == 1200
    # At least once: what was in flight at the restart may come twice, nothing is missing but
    # what only the dead broker held.
    assert max(account(second).values()) <= 2


def test_no_broker_is_one_clear_error(
    broker: Any, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stop()
    monkeypatch.setattr(replay_module, "CONNECT_SECONDS", 0.5)
    with pytest.raises(RigcanaryError, match=r"no MQTT broker answers at 127\.0\.0\.1"):
        Replay(dataset, ReplayOptions(broker.settings(), None)).run()


def test_pace() -> None:
    pace = _Pace(60.0, max_pause_seconds=2.0)
    assert pace.delay(1000.0, 7.0) == 0.0
    assert pace.delay(1030.0, 7.0) == 0.5
    assert pace.delay(1030.0, 8.0) == -0.5  # late: no wait, and no debt
    assert pace.delay(9030.0, 8.0) == 1.5  # a long gap is cut to two seconds
    assert _Pace(None, None).delay(5.0, 1.0) == 0.0


def test_the_command_reports_what_arrived(broker: Any, dataset: Path) -> None:
    command = [sys.executable, "-m", "rigcanary", "replay", str(dataset), "--json"]
    command += ["--mqtt", f"127.0.0.1:{broker.port}", "--speed", "max"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    report = orjson.loads(done.stdout)
    assert report["samples_acknowledged"] == report["rows"] == 1200
    assert report["complete"]


def test_a_wrong_option_is_one_line_and_exit_code_2(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(dataset), "--speed", "fast"]) == 2
    assert run(["replay", str(dataset), "--mqtt", "here:there"]) == 2
    assert run(["replay", str(dataset / "elsewhere")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert "--speed 'fast'" in lines[0]
    assert "--mqtt 'here:there'" in lines[1]
    assert "no fleet data set" in lines[2]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("h", ("h", 1883)),
        ("h:1", ("h", 1)),
        ("[::1]:2", ("::1", 2)),
        ("::1", ("::1", 1883)),
        ("mqtt://h:3", ("h", 3)),
    ],
)
def test_host_port(text: str, parts: tuple[str, int]) -> None:
    assert host_port(text, "--mqtt", 1883) == parts


def test_times_and_speeds_as_people_type_them() -> None:
    assert unix_seconds("1767225600.5", "x") == T0 + 0.5
    assert unix_seconds("2026-01-01T00:00:00Z", "x") == T0
    assert unix_seconds("2026-01-01 01:00+01:00", "x") == T0
    assert (speed_of("60"), speed_of("0"), speed_of("max")) == (60.0, None, None)
    for wrong in ("nan", "-1", "inf", ""):
        with pytest.raises(ConfigError):
            speed_of(wrong)
    with pytest.raises(ConfigError, match="--sim-start"):
        unix_seconds("soon", "--sim-start")
