"""ipmitool: the forms it prints, as machines printed them, and the tool beside the samples."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.formats.ipmitool import parse
from agents.messages import Envelope
from agents.once import once
from agents.sampler import Sampler
from agents.sensor_settings import IpmiSettings
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from agents.sources.ipmi import IpmiSource
from contract.errors import ConfigError

RECORDINGS = Path(__file__).parents[3] / "shared/data/device_outputs/ipmitool"
needs_recordings = pytest.mark.skipif(
    not RECORDINGS.exists(), reason="recordings are not beside the repository"
)
SDR = """Inlet Temp       | 24 degrees C      | ok
Exhaust Temp     | 41 degrees C      | ok
12V              | 12.12 Volts       | ok
Fan1             | no reading        | ns
Fan2             | 3600 RPM          | ok
"""


def at(tick: int = 0) -> Instant:
    return Instant(1_767_225_600.0 + 5 * tick, 1000.0 + 5 * tick)


@needs_recordings
@pytest.mark.parametrize(
    ("name", "inlet", "rail", "rpm"),
    [
        ("telegraf/ipmi_1", 20.0, 12.04, 1275.0),
        ("telegraf/ipmi_2", 25.0, None, 5040.0),
        ("telegraf/ipmi_3", 20.0, 12.04, None),
        ("telegraf/ipmi_4", 25.0, None, 5040.0),
        ("ceilometer/sensor_temperature_data", 23.0, None, None),
        ("ceilometer/sensor_voltage_data", None, 11.831, None),
        ("ceilometer/sensor_fan_data", None, None, 4606.0),
        ("ceilometer/sensor_current_data", None, None, None),
    ],
)
def test_recordings(name: str, inlet: float | None, rail: float | None, rpm: float | None) -> None:
    settings = AgentSettings(node="rig1", sources=("ipmi",), input=RECORDINGS / f"{name}.txt")
    (reading,) = IpmiSource(settings).read(at())
    assert reading["device"] == "rig1"
    assert reading.get("ambient_celsius") == inlet
    assert reading.get("vrm_voltage_volts") == rail
    assert reading["fan_speed_rpm"] == rpm


@needs_recordings
def test_another_command_s_output_is_refused_and_repeated() -> None:
    with pytest.raises(ReadFailed, match="gave no sensors: Instantaneous power reading"):
        parse((RECORDINGS / "telegraf/ipmi_5.txt").read_bytes())


@pytest.mark.parametrize(
    "line",
    [
        "Inlet Temp       | 24 degrees C      | ok",  # sdr
        "Inlet Temp,24,degrees C,ok",  # -c sdr
        "Inlet Temp       | 04h | ok  |  7.1 | 24 degrees C",  # sdr elist
        "Inlet Temp,04h,ok,7.1,24 degrees C",
        "Inlet Temp | 24.000     | degrees C  | ok    | na | 3.000 | 7.000 | 42.000 | 47.000 | na",
        "Inlet Temp | 24.000     | degrees C  | nc    | na | 3.000 | 7.000 | 42.000 | 47.000 | na",
        "Sensor ID              : Inlet Temp (0x4)\n Sensor Reading        : 24 (+/- 1) degrees C",
    ],
)
def test_forms_of_one_reading(line: str) -> None:
    (value,) = parse(line.encode())
    assert (value.name, value.value, value.unit) == ("Inlet Temp", 24.0, "celsius")


@pytest.mark.parametrize(
    "line",
    [
        "SEL              | 72h | ns  |  7.1 | No Reading",
        "Fan 1            | 0x00              | ok",
        "Fan1             | na         | RPM        | na    | na | na | na | na | na | na",
        "DASD Backplane 3 | Not Readable      | ns",
        "USB Cable Pres   | 50h | ok  |  7.1 | Connected",
        "Sensor ID              : X (0x4)\n Sensor Reading        : Disabled",
    ],
)
def test_sensors_without_a_value_are_left_out(line: str) -> None:
    assert parse(line.encode()) == []


def test_states_behind_a_value_and_errors_between_lines_are_passed_over() -> None:
    printed = (
        b"Unable to send command: Invalid argument\nPS1 | 03h | ok | 10.1 | 110 Watts, Present\n"
    )
    (value,) = parse(printed)
    assert (value.value, value.unit) == (110.0, "watts")


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    said = ""
    try:
        parse(text.encode())
    except ReadFailed as error:
        said = str(error)
    assert "\n" not in said


def test_inlet_and_rail_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "sdr"
    path.write_text(SDR + "P2V5 | 2.5 Volts | ok\n")
    named = IpmiSettings(ambient="Exhaust Temp", rail="P2V5")
    settings = AgentSettings(sources=("nvml", "ipmi"), input=path, ipmi=named)
    assert IpmiSource(settings).read(at()) == [
        {"attach": "*", "ambient_celsius": 41.0, "vrm_voltage_volts": 2.5}
    ]
    other = settings.model_copy(update={"ipmi": IpmiSettings(ambient="nothing", rail="nothing")})
    assert IpmiSource(other).read(at()) == []


def test_an_impossible_value_is_null_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "sdr"
    path.write_text("Inlet Temp | 255 degrees C | ok\nFan1 | 65535 RPM | ok\n")
    ipmi = IpmiSource(AgentSettings(node="rig1", sources=("ipmi",), input=path))
    (reading,) = ipmi.read(at())
    assert (reading["ambient_celsius"], reading["fan_speed_rpm"]) == (None, None)
    assert ipmi.nulled == {
        ("ambient_celsius", "out of range"): 1,
        ("fan_speed_rpm", "out of range"): 1,
    }


# --- the tool --------------------------------------------------------------------------------


def settings(tmp_path: Path, script: str, *sources: str, **more: Any) -> AgentSettings:
    path = tmp_path / "ipmitool.py"
    path.write_text(script)
    ipmi = IpmiSettings(command=(sys.executable, str(path)), **more)
    return AgentSettings(node="rig1", sources=sources or ("ipmi",), ipmi=ipmi)


def until_read(source: IpmiSource, tick: int = 0) -> list[DeviceReading]:
    for _ in range(1500):
        readings = source.read(at(tick))
        if len(readings) and len(readings[0]) > 2:
            return readings
        time.sleep(0.01)
    raise AssertionError("the tool never answered")


def test_no_tool_is_not_here_at_every_tick(tmp_path: Path) -> None:
    ipmi = IpmiSettings(command=("ipmitool-that-is-not-there",))
    source = IpmiSource(AgentSettings(ipmi=ipmi))
    for tick in range(3):
        with pytest.raises(NotHere, match="ipmitool-that-is-not-there is not installed"):
            source.read(at(tick))
    source.close()
    with pytest.raises(ConfigError, match="no such file"):
        IpmiSource(AgentSettings(input=tmp_path / "nothing"))


def test_it_runs_at_its_own_cadence_and_between_there_are_no_values(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    script = f"open({str(runs)!r}, 'a').write('x'); print({SDR!r})"
    source = IpmiSource(settings(tmp_path, script, every_seconds=30))
    assert until_read(source)[0]["ambient_celsius"] == 24.0
    for tick in range(1, 6):
        assert source.read(at(tick)) == [{"device": "rig1", "state": "ok"}]
    assert runs.read_text() == "x"
    assert until_read(source, 6)[0]["vrm_voltage_volts"] == 12.12
    assert runs.read_text() == "xx"
    source.close()


def test_once_waits_for_the_slow_tool(tmp_path: Path) -> None:
    message, _ = once(settings(tmp_path, f"import time; time.sleep(0.5); print({SDR!r})"))
    (device,) = message["devices"]
    assert (device["device"], device["ambient_celsius"]) == ("rig1", 24.0)


class Cards:
    name, enumerates = "cards", True

    def read(self, now: Instant) -> list[DeviceReading]:
        return [{"device": "GPU-1", "index": 0, "temperature_celsius": 60.0}]

    def close(self) -> None:
        pass


def test_a_tool_that_hangs_costs_nobody_else_anything(tmp_path: Path) -> None:
    made = settings(tmp_path, "import time; time.sleep(3600)", "nvml", "ipmi", deadline_seconds=20)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [Cards(), IpmiSource(made)], 5.0)
    ticks = [sampler.tick(at(i)) for i in range(6)]
    for tick in ticks:
        assert tick.telemetry is not None
        assert [d["temperature_celsius"] for d in tick.telemetry["devices"]] == [60.0]
        assert tick.telemetry["devices"][0]["state"] == "ok"
    said = [notice for tick in ticks for notice in tick.notices]
    assert any("did not answer within 20 s and was killed" in notice for notice in said)
    sampler.close()
