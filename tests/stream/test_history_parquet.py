"""The Parquet history: last one wins, whatever the order, crashes and writers."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.minute import COLUMNS
from stream.edge import history_parquet
from stream.edge.day_table import DayTable
from stream.edge.history_parquet import ParquetHistory
from stream.edge.history_rows import BUILDERS, MINUTES, TABLES

DAY = 1_767_225_600  # 2026-01-01T00:00:00Z


def minute(
    node: str, at: int, mean: float | str | None = 50.0, cards: int = 2, **more: object
) -> dict:
    devices = []
    for i in range(cards):
        entry = {
            "device": f"GPU-{node}-{i}", "index": i, "vendor": "nvidia", "model": "m",
            "samples": 12, "samples_ok": 12, "temperature_celsius_mean": mean,
            "temperature_celsius_count": 12, "ecc_corrected_total_last": 2**53 - 1,
            "fan_speed_rpm_mean": None,
        }  # fmt: skip
        devices.append(entry | more)
    return {
        "schema": "rigcanary.minutes/1", "site": "lab", "node": node, "minute": at,
        "messages": 12, "interval_seconds": 5.0, "devices": devices,
    }  # fmt: skip


RISK = {
    "schema": "rigcanary.risks/1", "site": "lab", "node": "r1", "minute": DAY,
    "model_version": "v1",
    "devices": [
        {"device": "a", "status": "scored", "completeness": 1.0, "risk_15m": 0.1, "risk_60m": 0.2,
         "risk_240m": 0.3, "health_score": 80.0},
        {"device": "b", "status": "not enough data", "completeness": 0.2, "risk_15m": None,
         "risk_60m": None, "risk_240m": None, "health_score": None},
    ],
}  # fmt: skip
DECISION = {
    "schema": "rigcanary.decision/1", "decision_id": "dec_1", "type": "migration.requested",
    "dry_run": False, "decided_ms": DAY * 1000 + 5,
    "data": {"site": "lab", "node": "r1", "device": "a", "episode_id": "ep_1", "cause": "predicted",
             "risk": 0.9, "decided_at": "2026-01-01T00:00:00.005Z"},
}  # fmt: skip
EVENT = {
    "schema": "rigcanary.event/1", "site": "lab", "node": "r1", "boot_id": "b", "seq": 7,
    "ts": DAY + 1.5, "device": "a", "type": "xid", "code": 79, "message": "lost", "raw": "NVRM",
}  # fmt: skip


def rows(table: DayTable) -> list[dict]:
    return [r for day in table.days() for batch in table.batches(day) for r in batch.to_pylist()]


def naive(folder: Path) -> dict:
    """What a reader sees who only knows: files in order of name, the last row of a key wins."""
    found = {}
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found[row["node"], row["device"], row["minute"]] = row["temperature_celsius_mean"]
    return found


operation = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("xyz"), st.integers(0, 3), st.integers(0, 2),
              st.floats(-20, 150)),
    st.tuples(st.just("fold"), st.integers(0, 2)),
    st.tuples(st.just("crash"), st.integers(0, 2)),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.lists(operation, max_size=15))
def test_the_last_row_of_a_key_wins_after_any_folds_and_crashes(tmp_path_factory, operations):
    folder = tmp_path_factory.mktemp("history")
    writers = [DayTable(folder, MINUTES), DayTable(folder, MINUTES)]
    expected = {}
    for i, (kind, *arguments) in enumerate(operations):
        table = writers[i % 2]
        if kind == "add":
            node, m, day, mean = arguments
            at = DAY + day * 86_400 + m * 60
            table.append(BUILDERS["minutes"]([minute(node, at, mean)]))
            for d in range(2):
                expected[node, f"GPU-{node}-{d}", at] = mean
        else:
            day = f"2026-01-0{1 + arguments[0]}"
            before = {p: p.read_bytes() for p in table.files(day)}
            assert table.fold(day)
            if kind == "crash":  # the day's file was renamed, no part deleted yet
                for path, body in before.items():
                    if path.name != f"{day}.parquet":
                        path.write_bytes(body)
    got = {
        (r["node"], r["device"], int(r["minute"].timestamp())): r["temperature_celsius_mean"]
        for r in rows(DayTable(folder, MINUTES))
    }
    assert got == expected
    seen = {(n, d, int(m.timestamp())): t for (n, d, m), t in naive(folder / "minutes").items()}
    assert seen == expected


async def test_everything_is_kept_by_day(tmp_path):
    history = ParquetHistory(tmp_path)
    await history.start()
    for day in range(3):
        for m in range(3):
            history.minutes(minute("r1", DAY + day * 86_400 + m * 60))
    history.minutes(minute("r1", DAY, 99.0))
    history.risk(RISK)
    history.decision(DECISION)
    history.decision(DECISION)
    history.event(EVENT)
    await history.stop()
    assert history.counts[("minutes", "written")] == 20
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.parquet"))
    assert names == [
        "decisions/2026-01-01.parquet", "events/2026-01-01.parquet",
        *(f"minutes/2026-01-0{d}.parquet" for d in (1, 2, 3)), "risks/2026-01-01.parquet",
    ]  # fmt: skip
    table = pq.read_table(tmp_path / "minutes" / "2026-01-01.parquet")
    assert table.column_names[-len(COLUMNS) :] == list(COLUMNS)
    first = [r for r in table.to_pylist() if r["minute"] == datetime(2026, 1, 1, tzinfo=UTC)]
    assert [r["temperature_celsius_mean"] for r in first] == [99.0, 99.0]
    assert first[0]["fan_speed_rpm_mean"] is None
    assert first[0]["fan_speed_rpm_count"] == 0  # left out of the value where it is 0
    assert first[0]["ecc_corrected_total_last"] == 2**53 - 1
    (decision,) = pq.read_table(tmp_path / "decisions").to_pylist()
    assert decision["episode_id"] == "ep_1"
    (event,) = pq.read_table(tmp_path / "events").to_pylist()
    assert event["code"] == 79
    assert len(pq.read_table(tmp_path / "risks").to_pylist()) == 2


async def test_unusable_values_are_counted_and_lose_no_other(tmp_path):
    history = ParquetHistory(tmp_path)
    await history.start()
    good = [minute("r1", DAY + 60 * m) for m in range(10)]
    for value in (*good[:5], {}, {"minute": "x"}, minute("r2", DAY, mean="hot"), *good[5:]):
        history.minutes(value)
    history.event({**EVENT, "code": "79"})
    history.event({**EVENT, "seq": "seven"})
    await history.stop()
    assert history.counts[("minutes", "written")] == 20
    assert history.counts[("minutes", "failed")] == 3
    assert history.counts[("events", "written")] == 1


async def test_a_full_queue_drops_and_counts(tmp_path):
    history = ParquetHistory(tmp_path)
    for m in range(5000):
        history.minutes(minute("r1", DAY + m * 60, cards=1))
    assert history.counts[("minutes", "dropped")] == 5000 - history.queued
    await history.start()
    await history.stop()
    assert history.counts[("minutes", "written")] == 4096


async def test_a_disk_that_cannot_be_written_holds_and_then_sheds(tmp_path, monkeypatch):
    monkeypatch.setattr(history_parquet, "MAX_HELD_ROWS", 40)
    (tmp_path / "minutes").write_text("in the way")
    history = ParquetHistory(tmp_path, flush_seconds=0)
    await history.start()
    for m in range(10):
        history.minutes(minute("r1", DAY + m * 60))
    await asyncio.sleep(0.05)
    for m in range(10, 40):
        history.minutes(minute("r1", DAY + m * 60))
        await asyncio.sleep(0.01)
    while history.queued:
        await asyncio.sleep(0.02)
    (tmp_path / "minutes").unlink()
    history.minutes(minute("r1", DAY + 40 * 60))
    await history.stop()
    written, dropped = (history.counts.get(("minutes", k), 0) for k in ("written", "dropped"))
    assert written + dropped == 82
    assert 0 < written <= 82
    assert len(rows(DayTable(tmp_path, MINUTES))) == written


def test_a_corrupt_part_is_set_aside(tmp_path, caplog):
    table = DayTable(tmp_path, MINUTES)
    table.append(BUILDERS["minutes"]([minute("r1", DAY)]))
    (tmp_path / "minutes" / "2026-01-01.z0-x.parquet").write_bytes(b"PAR1 half a file")
    assert table.fold("2026-01-01")
    assert len(rows(table)) == 2
    assert "set aside" in caplog.text
    assert (tmp_path / "minutes" / "2026-01-01.z0-x.parquet.corrupt").exists()


def test_only_one_process_folds_at_a_time(tmp_path):
    one, two = DayTable(tmp_path, MINUTES), DayTable(tmp_path, MINUTES)
    one.append(BUILDERS["minutes"]([minute("r1", DAY)]))
    with one.held():
        assert not two.fold("2026-01-01")
    assert two.fold("2026-01-01")


def test_what_a_crash_left_half_written_is_removed_later(tmp_path):
    table = DayTable(tmp_path, MINUTES)
    table.append(BUILDERS["minutes"]([minute("r1", DAY)]))
    old, new = table.folder / ".tmp-old", table.folder / ".tmp-new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    table.clean()
    assert not old.exists()
    assert new.exists()


def test_a_column_of_a_later_version_is_null_in_older_files(tmp_path):
    table = DayTable(tmp_path, MINUTES)
    old = BUILDERS["minutes"]([minute("r1", DAY)])
    table.append(old)
    (path,) = table.files("2026-01-01")
    pq.write_table(pq.read_table(path).drop_columns(["vendor", "power_watts_mean"]), path)
    assert table.fold("2026-01-01")
    assert rows(table)[0]["vendor"] is None


@pytest.mark.parametrize("spec", TABLES, ids=lambda s: s.name)
def test_no_values_make_an_empty_table(spec):
    table = BUILDERS[spec.name]([])
    assert table.num_rows == 0
    assert table.schema == spec.schema


KILLED = f"""
    DAY = {DAY}
    import asyncio, sys
    from pathlib import Path
    from stream.edge.history_parquet import ParquetHistory

    async def main():
        history = ParquetHistory(Path(sys.argv[1]), flush_seconds=0.0)
        await history.start()
        print("up", flush=True)
        for m in range(100_000):
            device = {{"device": "a", "samples": 12}}
            at = DAY + 60 * m
            history.minutes({{"site": "s", "node": "r", "minute": at, "devices": [device]}})
            await asyncio.sleep(0.0005)

    asyncio.run(main())
"""


def test_kill_leaves_only_whole_files(tmp_path):
    arguments = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    table = DayTable(tmp_path, MINUTES)
    while len(list(tmp_path.rglob("*.parquet"))) < 3:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    kept = sorted({int(r["minute"].timestamp()) for r in rows(table)})
    assert kept == [DAY + 60 * m for m in range(len(kept))]  # a prefix, nothing torn
    assert kept
    assert not list(tmp_path.rglob("*.corrupt"))
