"""Reading fleet data sets: every form that contracts section 4 allows, and what it refuses."""

import numpy as np
import pandas as pd
import pytest

from contract.errors import ConfigError
from contract.minute import COLUMN_INDEX, COLUMNS
from models import dataset, fleet_files
from models.dataset import Fleet
from models.fleet_files import read_outcomes, to_ms

T0 = 1_767_225_600  # 2026-01-01T00:00:00Z


def frame(minutes=3, devices=("a", "b")):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        [
            {
                "ts": T0 + m * 60 + s,
                "node": f"n-{d}",
                "device": d,
                "state": "ok",
                "temperature_celsius": 60 + rng.normal(),
                "ecc_corrected_total": None,
            }
            for d in devices
            for m in range(minutes)
            for s in (1, 21, 41)
        ]
    )
    return table.sample(frac=1, random_state=1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "failures.csv").write_text("device,failed_at,kind\n")
    return tmp_path


def read(folder):
    with Fleet(folder) as fleet:
        return {d.device: d for d in fleet.devices()}


def rfc3339(table):
    return table.assign(
        ts=pd.to_datetime(table["ts"], unit="s", utc=True).map(
            lambda t: t.isoformat().replace("+00:00", "Z")
        )
    )


def write(folder, form, table):
    if form == "csv seconds":
        table.to_csv(folder / "telemetry.csv", index=False)
    elif form == "csv rfc3339":
        rfc3339(table).to_csv(folder / "telemetry.csv", index=False)
    elif form == "parquet seconds":
        table.to_parquet(folder / "telemetry.parquet")
    elif form == "parquet timestamps":
        table.assign(ts=pd.to_datetime(table["ts"], unit="s", utc=True)).to_parquet(
            folder / "telemetry.parquet"
        )
    elif form == "parquet naive":
        table.assign(ts=pd.to_datetime(table["ts"], unit="s")).to_parquet(
            folder / "telemetry.parquet"
        )
    elif form == "folder":
        (folder / "telemetry").mkdir()
        half = len(table) // 2
        table[:half].to_parquet(folder / "telemetry" / "one.parquet")
        rfc3339(table[half:]).to_csv(folder / "telemetry" / "two.csv", index=False)


FORMS = [
    "csv seconds",
    "csv rfc3339",
    "parquet seconds",
    "parquet timestamps",
    "parquet naive",
    "folder",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_minute_rows(folder, form):
    table = frame()
    write(folder, form, table)
    devices = read(folder)
    assert sorted(devices) == ["a", "b"]
    assert devices["a"].node == "n-a"
    assert devices["a"].minute_M.tolist() == [T0 // 60, T0 // 60 + 1, T0 // 60 + 2]
    assert (devices["a"].rows_MC[:, COLUMN_INDEX["samples"]] == 3).all()
    mine = table[(table["device"] == "b") & (table["ts"] < T0 + 60)]["temperature_celsius"]
    assert devices["b"].rows_MC[0, COLUMN_INDEX["temperature_celsius_mean"]] == pytest.approx(
        mine.mean(), abs=1e-3
    )
    assert np.isnan(devices["a"].rows_MC[:, COLUMN_INDEX["ecc_corrected_total_last"]]).all()


def test_parts_on_disk_change_nothing(folder, monkeypatch):
    write(folder, "parquet seconds", frame(devices="abcdefg"))
    whole = read(folder)
    monkeypatch.setattr(dataset, "PART_ROWS", 10)
    monkeypatch.setattr(fleet_files, "BATCH_ROWS", 7)
    parts = read(folder)
    assert sorted(parts) == sorted(whole)
    for name, device in whole.items():
        np.testing.assert_array_equal(device.rows_MC, parts[name].rows_MC)


def test_a_second_pass_reads_the_same(folder):
    write(folder, "csv seconds", frame())
    with Fleet(folder) as fleet:
        first = [(d.device, d.rows_MC.sum()) for d in fleet.devices()]
        assert [d for d, _ in first] == [d.device for d in fleet.devices()]


def test_states_and_unknown_columns(folder):
    table = frame(1, ("a",)).assign(state=["lost", "sulking", None], colour="red")
    table.to_csv(folder / "telemetry.csv", index=False)
    row = read(folder)["a"].rows_MC[0]
    assert [
        row[COLUMN_INDEX[f"samples_{s}"]] for s in ("ok", "lost", "unresponsive", "unknown")
    ] == [1, 1, 0, 1]


def test_without_a_state_column_all_samples_are_ok(folder):
    frame(1, ("a",)).drop(columns="state").to_csv(folder / "telemetry.csv", index=False)
    assert read(folder)["a"].rows_MC[0, COLUMN_INDEX["samples_ok"]] == 3


def test_minute_rows_stand_in_for_telemetry_and_the_last_one_wins(folder):
    table = pd.DataFrame(
        {
            "minute": pd.to_datetime([T0, T0 + 60, T0], unit="s", utc=True),
            "node": "n",
            "device": "a",
            **{c: [1.0, 2.0, 3.0] for c in COLUMNS},
        }
    )
    table.to_parquet(folder / "minutes.parquet")
    device = read(folder)["a"]
    assert device.minute_M.tolist() == [T0 // 60, T0 // 60 + 1]
    assert device.rows_MC[:, 5].tolist() == [3, 2]


def test_minutes_in_which_the_rig_spoke_without_the_card_are_empty_rows(folder):
    table = frame(4).assign(node="n")
    gone = (table["device"] == "a") & (table["ts"] >= T0 + 60) & (table["ts"] < T0 + 120)
    late = (table["device"] == "b") & (table["ts"] >= T0 + 180)
    table[~gone & ~late].to_csv(folder / "telemetry.csv", index=False)
    devices = read(folder)
    samples = COLUMN_INDEX["samples"]
    assert np.nan_to_num(devices["a"].rows_MC[:, samples]).tolist() == [3, 0, 3, 3]
    assert np.nan_to_num(devices["b"].rows_MC[:, samples]).tolist() == [3, 3, 3, 0]
    assert devices["b"].last_ms == (T0 + 180) * 1000


def test_outcomes_and_what_ends_with_them(folder):
    (folder / "failures.csv").write_text(
        "device,failed_at,kind\n"
        f"a,{T0 + 150},dust\na,2026-01-01T09:00:00Z,other\nb,2026-01-01T00:30:00Z,\n"
    )
    (folder / "moves.csv").write_text(f"device,moved_at\nb,{T0 + 120}\n")
    outcomes = read_outcomes(folder)
    assert outcomes["a"].failed_ms == (T0 + 150) * 1000
    assert outcomes["a"].kind == "dust"
    assert outcomes["b"].failure_ms is None
    write(folder, "csv seconds", frame(5))
    devices = read(folder)
    assert len(devices["a"].minute_M) == 2
    assert len(devices["b"].minute_M) == 2


def test_a_move_after_the_failure_does_not_censor_it(folder):
    (folder / "failures.csv").write_text(f"device,failed_at,kind\na,{T0 + 100},dust\n")
    (folder / "moves.csv").write_text(f"device,moved_at\na,{T0 + 200}\n")
    assert read_outcomes(folder)["a"].failure_ms == (T0 + 100) * 1000


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "failures.csv is missing"),
        ({"failures.csv": "device,kind\n"}, "column failed_at is missing"),
        ({"failures.csv": "device,failed_at\na,yesterday\n"}, "'yesterday' is no time stamp"),
        ({"failures.csv": "device,failed_at\n"}, "neither telemetry.parquet"),
        (
            {"failures.csv": "device,failed_at\n", "telemetry.csv": "time,device\n1,a\n"},
            "column ts is missing",
        ),
        (
            {"failures.csv": "device,failed_at\n", "telemetry.csv": "ts,device\nsoon,a\n"},
            "'soon' is no time stamp",
        ),
        (
            {
                "failures.csv": "device,failed_at\n",
                "telemetry.csv": "ts,device,temperature_celsius\n1767225600,a,hot\n",
            },
            "cannot read it",
        ),
        ({"failures.csv": "device,failed_at\n", "telemetry.parquet": "no"}, "as Parquet"),
        ({"failures.csv": "device,failed_at\n", "minutes.parquet": "no"}, "as Parquet"),
    ],
)
def test_what_is_refused_names_the_file(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path)


def test_no_such_folder(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        Fleet(tmp_path / "nowhere")


def test_several_sets_and_their_hash(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "failures.csv").write_text(f"device,failed_at\n{name},{T0 + 170}\n")
        write(tmp_path / name, "csv seconds", frame(3, (name,)))
    with Fleet(tmp_path / "one", tmp_path / "two") as both, Fleet(tmp_path / "one") as one:
        assert [d.device for d in both.devices()] == ["one", "two"]
        assert both.content_hash() != one.content_hash()


def test_to_ms_keeps_milliseconds():
    assert to_ms(pd.Series(["1767225600.25"]), "x").tolist() == [1_767_225_600_250]
    assert to_ms(pd.Series(["2026-01-01T00:00:00.250+00:00"]), "x").tolist() == [1_767_225_600_250]
    with pytest.raises(ConfigError, match="Unix seconds"):
        to_ms(pd.Series([1.7e12]), "x")
