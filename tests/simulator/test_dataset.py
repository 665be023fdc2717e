"""Fleet data sets on disk: contracts section 4."""

import csv
import dataclasses
import json
from datetime import datetime

import pandas as pd
import pyarrow.parquet as pq
import pytest

from contract.errors import ConfigError
from contract.signals import SIGNAL_NAMES
from rigcanary.cli import run
from simulator.dataset import SCHEMA, write_fleet
from simulator.fleet import FleetSpec, fleet_story

SPEC = FleetSpec(rigs=3, cards=4, days=0.15, seed=6, failure_share=0.5, interval_seconds=30)


def rows_of(folder):
    if list(folder.glob("telemetry/*.csv")):
        frames = [pd.read_csv(p) for p in sorted(folder.glob("telemetry/*.csv"))]
        frame = pd.concat(frames, ignore_index=True)
        frame["ts"] = pd.to_datetime(frame["ts"], format="ISO8601", utc=True)
        return frame
    return pq.read_table(folder / "telemetry").to_pandas()


def events_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def when(text):
    return pd.Timestamp(datetime.fromisoformat(text))


def test_parquet_and_csv_agree_and_nothing_follows_a_failure(tmp_path):
    summary = write_fleet(SPEC, tmp_path / "p")
    assert write_fleet(SPEC, tmp_path / "c", "csv") == summary
    parquet, text = rows_of(tmp_path / "p"), rows_of(tmp_path / "c")
    assert list(parquet.columns) == list(text.columns) == SCHEMA.names
    assert len(parquet) == len(text) == summary.rows
    for name in SCHEMA.names:
        if name in SIGNAL_NAMES:
            pd.testing.assert_series_equal(parquet[name], text[name].astype("float64"))
        else:
            assert (parquet[name].astype(str) == text[name].astype(str)).all(), name
    failures = events_of(tmp_path / "p" / "failures.csv")
    assert failures == events_of(tmp_path / "c" / "failures.csv")
    assert len(failures) == summary.failures == 6
    assert not (tmp_path / "p" / "moves.csv").exists()
    last = parquet.groupby("device")["ts"].max()
    for row in failures:
        assert last[row["device"]] < when(row["failed_at"])
        assert (when(row["failed_at"]) - last[row["device"]]).total_seconds() < 1200
    assert not parquet.duplicated(["device", "ts"]).any()
    assert set(parquet["state"]) <= {"ok", "unresponsive"}


def test_the_rate_is_the_agents(tmp_path):
    write_fleet(SPEC, tmp_path)
    for _, group in rows_of(tmp_path).groupby("device"):
        rows = group.sort_values("ts")
        rate = rows["temperature_rate_celsius_per_second"]
        assert pd.isna(rate.iloc[0])
        expected = rows["temperature_celsius"].diff() / rows["ts"].diff().dt.total_seconds()
        plain = (rows["ts"].diff().dt.total_seconds() == 30.0) & expected.notna() & rate.notna()
        assert plain.sum() > 100
        assert (rate[plain] - expected[plain]).abs().max() < 1e-4


def test_moved_cards_are_censored(tmp_path):
    spec = dataclasses.replace(SPEC, move_share=0.5)
    summary = write_fleet(spec, tmp_path)
    moves, failures = events_of(tmp_path / "moves.csv"), events_of(tmp_path / "failures.csv")
    assert len(moves) == summary.moves > 0
    assert len(moves) + len(failures) == 6
    assert not {m["device"] for m in moves} & {f["device"] for f in failures}
    assert {f["device"] for f in failures} | {m["device"] for m in moves} == {
        f.device for f in fleet_story(spec).failures
    }
    last = rows_of(tmp_path).groupby("device")["ts"].max()
    for row in moves:
        assert row["device"] not in last or last[row["device"]] < when(row["moved_at"])


def test_twice_the_same_bytes(tmp_path):
    spec = dataclasses.replace(SPEC, rigs=1, days=0.1)
    write_fleet(spec, tmp_path / "a")
    write_fleet(spec, tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_data_set_is_not_overwritten_unasked(tmp_path):
    spec = FleetSpec(rigs=1, cards=1, days=1 / 24, interval_seconds=60)
    write_fleet(spec, tmp_path)
    with pytest.raises(ConfigError, match="already holds a data set"):
        write_fleet(spec, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    shares: list[float] = []
    write_fleet(spec, tmp_path, force=True, progress=shares.append)
    assert (tmp_path / "notes.txt").exists()
    assert shares[-1] == pytest.approx(1.0)


def test_the_command_line(tmp_path, capsys):
    out = str(tmp_path / "fleet")
    line = [
        "simulate",
        out,
        "--rigs",
        "2",
        "--cards",
        "2",
        "--days",
        "0.1",
        "--seed",
        "3",
        "--failure-share",
        "0.5",
        "--interval",
        "30",
        "--format",
        "csv",
        "--json",
    ]
    assert run(line) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["devices"] == 4
    assert answer["failures"] == 2
    assert sum(answer["by_kind"].values()) == 2
    assert run(line) == 2
    assert "already holds a data set" in capsys.readouterr().err
    assert run(["simulate", out + "2", "--rigs", "0"]) == 2
    assert "rigs must be 1" in capsys.readouterr().err
    assert run(["simulate", out + "2", "--kind", "rust"]) == 2
    assert "no failure kind 'rust'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to"):
        write_fleet(FleetSpec(rigs=1, cards=1, days=0.1), tmp_path / "file" / "x")
