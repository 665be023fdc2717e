"""``rigcanary agent`` and ``rigcanary convert`` as a person or a program calls them."""

from pathlib import Path

import orjson
import pytest

from agents import once as once_module
from agents.sampler import Tick
from agents.settings import AgentSettings
from contract.message import check_telemetry
from rigcanary.cli import run


def test_once_prints_one_message_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "--once", "--json", "--source", "sim", "--node", "rig003"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    message = check_telemetry(orjson.loads(line), 2_000_000_000_000)
    assert message["node"] == "rig003"
    assert len(message["devices"]) == 8


def test_asking_a_late_source_again_makes_no_rate_of_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late:
        pending, late, troubles = False, 0, {}

        def __init__(self) -> None:
            self.ticks = 0

        def tick(self, _: object) -> Tick:
            self.ticks += 1
            self.late = min(self.ticks, 3)
            rate = None if self.ticks == 1 else 2.0
            device = {"device": "GPU-a", "temperature_rate_celsius_per_second": rate}
            return Tick({"devices": [device]}, [], [])

        def close(self) -> None:
            """Nothing to close."""

    late = Late()
    monkeypatch.setattr(once_module, "make_sampler", lambda *_: late)
    monkeypatch.setattr(once_module, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(once_module, "encode", lambda _: b"")
    message, _ = once_module.once(AgentSettings(site="lab", node="r1", sources=("sim",)))
    assert late.ticks > 1
    assert message["devices"][0]["temperature_rate_celsius_per_second"] is None


def test_once_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "--once", "--source", "sim"]) == 0
    assert "temperature_celsius" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "text", "said"),
    [
        ("nvidia_smi", "{}", "no XML of nvidia-smi -q -x"),
        ("tenstorrent", '{"device_info": [', "tt-smi -s gave no JSON"),
        ("ipmi", "Instantaneous power reading: 167 Watts", "ipmitool gave no sensors"),
    ],
)
def test_a_file_that_is_no_such_recording_fails(
    source: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "recording"
    recording.write_text(text)
    command = ["agent", "--once", "--json", "--source", source, "--input", str(recording)]
    assert run(command) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"--input {recording}: source {source} failed: {said}" in printed.err


def test_show_config_masks_the_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    monkeypatch.setenv("RIGCANARY_AGENT_MQTT__PASSWORD", "hunter2")
    monkeypatch.setenv("RIGCANARY_AGENT_SITE", "lab-b")
    assert run(["agent", "--show-config", "--mqtt", "broker.lan:2883"]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    in_force = orjson.loads(shown)
    assert (in_force["site"], in_force["mqtt"]["host"], in_force["mqtt"]["port"]) == (
        "lab-b",
        "broker.lan",
        2883,
    )
    monkeypatch.delenv("RIGCANARY_AGENT_MQTT__PASSWORD")
    assert run(["agent", "--show-config", "--mqtt-password-file", str(secret)]) == 0
    assert "hunter2" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--source", "nope"], "source 'nope' is not known"),
        (["--node", "a/b"], "'a/b' must be 1–64 of"),
        (["--speed", "60"], "nvml measures real devices"),
        (["--mqtt", "here:there"], "--mqtt 'here:there'"),
        (["--mqtt", "mqtts://here:8883"], "TLS is turned on with a CA file"),
        (["--sim-start", "soon", "--source", "sim"], "--sim-start 'soon'"),
        (["--source", "nvidia_smi", "--input", "nowhere.xml"], "nowhere.xml"),
        (["--interval", "0"], "interval_seconds"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["agent", "--once", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


HEADER = (
    "datetime;Accelerometer1RMS;Accelerometer2RMS;Current;Pressure;Temperature;Thermocouple;"
    "Voltage;Volume Flow RateRMS;anomaly;changepoint"
)


def skab(folder: Path) -> Path:
    """A small SKAB: two files of valve1 out of order, two of ``other`` that overlap."""

    def write(name: str, minute: int, anomalies: str) -> None:
        path = folder / "data" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            f"2020-03-09 10:{minute:02d}:{i:02d};0.1;0.2;2.0;0.1;80.0;25.0;230.0;32.0;{a}.0;0.0"
            for i, a in enumerate(anomalies)
        ]
        path.write_text("\n".join([HEADER, *rows]) + "\n")

    write("valve1/10", 1, "0011")
    write("valve1/2", 2, "0110")
    write("other/1", 3, "1000")
    write("other/2", 3, "0000")
    return folder


def test_skab_every_row_becomes_one_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    out = tmp_path / "out"
    assert run(["convert", "skab", str(skab(tmp_path / "skab")), str(out), "--json"]) == 0
    report = orjson.loads(capsys.readouterr().out)
    assert (report["rows_in"], report["samples_out"], report["devices"]) == (16, 16, 3)
    assert (report["duplicate_timestamps"], report["implausible"]) == (0, {})
    assert (report["gaps"], report["longest_gap_seconds"]) == (1, 57.0)
    table = pq.read_table(out / "telemetry.parquet")
    row = table.to_pylist()[0]
    assert row["device"] == "skab-valve1"
    assert row["vrm_voltage_volts"] == pytest.approx(12.0)
    assert row["power_watts"] == 460.0
    assert (row["fan_vibration_g"], row["ambient_celsius"]) == (0.2, 25.0)
    assert set(table["device"].to_pylist()) == {"skab-valve1", "skab-other-01", "skab-other-02"}
    assert (out / "failures.csv").read_text() == "device,failed_at,kind\n"
    assert (out / "labels.csv").read_text().splitlines() == [
        "device,from,to",
        "skab-other-01,2020-03-09T10:03:00Z,2020-03-09T10:03:01Z",
        "skab-valve1,2020-03-09T10:01:02Z,2020-03-09T10:01:04Z",
        "skab-valve1,2020-03-09T10:02:01Z,2020-03-09T10:02:03Z",
    ]
    assert run(["convert", "skab", str(tmp_path / "skab"), str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_skab_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "skab", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "holds no SKAB data" in capsys.readouterr().err
    bad = tmp_path / "data" / "valve1" / "0.csv"
    bad.parent.mkdir(parents=True)
    bad.write_text("datetime;Current\n2020-03-09 10:00:00;1\n")
    assert run(["convert", "skab", str(tmp_path), str(tmp_path / "out")]) == 2
    assert f"{bad}: column 'Accelerometer1RMS' is missing" in capsys.readouterr().err


SKAB = Path(__file__).parents[3] / "shared" / "data" / "skab"


@pytest.mark.skipif(not SKAB.is_dir(), reason="SKAB is not beside the repository")
def test_skab_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "skab", str(SKAB), str(tmp_path / "out"), "--json"]) == 0
    report = orjson.loads(capsys.readouterr().out)
    assert (report["rows_in"], report["samples_out"], report["labelled_rows"]) == (
        46_806,
        46_806,
        13_067,
    )
    assert (report["devices"], report["duplicate_timestamps"], report["implausible"]) == (17, 0, {})
