"""Monitoring chips: copies of sysfs, sensors -j, what is believed unmapped, what is mapped."""

import json
from pathlib import Path
from typing import Any

import pytest

from agents.formats.hwmon_channels import of_json, of_sysfs
from agents.messages import Envelope
from agents.sampler import Sampler
from agents.sensor_settings import HwmonSensor, HwmonSettings
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from agents.sources.hwmon import HwmonSource
from contract.errors import ConfigError

RECORDINGS = Path(__file__).parents[3] / "shared/data/device_outputs"
needs_recordings = pytest.mark.skipif(
    not RECORDINGS.exists(), reason="recordings are not beside the repository"
)


def at(tick: int = 0) -> Instant:
    return Instant(1_767_225_600.0 + 5 * tick, 1000.0 + 5 * tick)


def chip(root: Path, number: int, name: str, **files: object) -> Path:
    folder = root / "class" / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    for file, value in files.items():
        (folder / file).write_text(f"{value}\n")
    return folder


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    """A board with labels, as some of them have, and a Super-I/O without."""
    chip(
        tmp_path,
        0,
        "asus_ec",
        temp1_input=31500,
        temp1_label="Inlet",
        temp2_input=44000,
        temp2_label="VRM",
        in0_input=12096,
        in0_label="+12V",
        fan1_input=0,
        fan2_input=1450,
        fan2_label="CHA_FAN1",
    )
    chip(tmp_path, 1, "nct6798", in1_input=1016, in7_input=2012, temp1_input=120000, pwm1=128)
    return tmp_path


def source(root: Path, *sensors: HwmonSensor, alone: bool = False, **more: Any) -> HwmonSource:
    hwmon = HwmonSettings(root=root, sensors=sensors)
    names = ("hwmon",) if alone else ("nvml", "hwmon")
    return HwmonSource(AgentSettings(node="rig1", sources=names, hwmon=hwmon, **more))


# --- recordings ------------------------------------------------------------------------------


@needs_recordings
def test_every_chip_of_the_recorded_sysfs_is_found_through_links_kept_as_text() -> None:
    found = of_sysfs(RECORDINGS / "sysfs")
    by_chip: dict[str, int] = {}
    for channel in found:
        by_chip[channel.chip] = by_chip.get(channel.chip, 0) + 1
    assert by_chip == {
        "coretemp": 10,
        "hwmon4": 2,
        "mt7996_phy0_0": 1,
        "mt7996_phy0_1": 1,
        "mt7996_phy0_2": 1,
        "nct6779": 3,
    }
    fan = next(c for c in found if (c.chip, c.name) == ("nct6779", "fan2"))
    assert fan.value == 1098.0
    assert next(c for c in found if (c.chip, c.name) == ("nct6779", "in0")).value == 0.792


@needs_recordings
def test_the_recorded_sysfs_alone_is_the_rigs_own_entry() -> None:
    settings = AgentSettings(node="rig1", sources=("hwmon",), input=RECORDINGS / "sysfs")
    (reading,) = HwmonSource(settings).read(at())
    assert {k: v for k, v in reading.items() if v is not None} == {
        "device": "rig1",
        "state": "ok",
        "fan_speed_rpm": 1098.0,
    }


@needs_recordings
@pytest.mark.parametrize(("name", "rpm"), [("asrock", 1278.0), ("kfanfail", None)])
def test_the_recorded_sensors_output(name: str, rpm: float | None) -> None:
    path = RECORDINGS / "sensors_json" / f"{name}.json"
    (reading,) = HwmonSource(AgentSettings(sources=("hwmon",), input=path)).read(at())
    assert reading["fan_speed_rpm"] == rpm
    # SYSTIN of 120 °C is an input nobody wired: no label says that it is the inlet.
    assert "ambient_celsius" not in reading
    channels = of_json(path.read_bytes())
    assert all(c.value is not None for c in channels)
    if name == "asrock":
        mapped = HwmonSensor(chip="nct67*", channel="SYSTIN", sensor="ambient_celsius")
        settings = AgentSettings(
            sources=("hwmon",), input=path, hwmon=HwmonSettings(sensors=(mapped,))
        )
        board = HwmonSource(settings)
        assert board.read(at())[0]["ambient_celsius"] is None
        assert board.nulled == {("ambient_celsius", "out of range"): 1}


# --- what is believed ------------------------------------------------------------------------


def test_unmapped_only_labels_are_believed_and_a_fan_is_no_cards(rig: Path) -> None:
    assert source(rig).read(at()) == [
        {"attach": "*", "ambient_celsius": 31.5},
        {"attach": "*", "vrm_voltage_volts": 12.096},
    ]


def test_alone_the_rig_has_its_slowest_turning_fan(rig: Path) -> None:
    assert source(rig, alone=True).read(at()) == [
        {
            "device": "rig1",
            "state": "ok",
            "ambient_celsius": 31.5,
            "vrm_voltage_volts": 12.096,
            "fan_speed_rpm": 1450.0,
        }
    ]


def test_a_rail_whose_divider_is_not_known_is_not_believed(tmp_path: Path) -> None:
    chip(tmp_path, 0, "it8688", in0_input=2016, in0_label="+12V")
    hwmon = source(tmp_path)
    assert hwmon.read(at()) == []
    assert hwmon.nulled == {("vrm_voltage_volts", "not scaled to 12 V"): 1}


def test_channels_are_mapped_by_name_or_label_with_a_factor(rig: Path) -> None:
    sensors = (
        HwmonSensor(chip="asus_ec", channel="CHA_FAN1", sensor="fan_speed_rpm", device="0"),
        HwmonSensor(chip="nct67*", channel="in7", sensor="vrm_voltage_volts", factor=6.0),
        HwmonSensor(chip="nct6798", channel="pwm1", sensor="fan_duty_ratio", device="nvidia:1"),
        HwmonSensor(chip="nct6798", channel="temp9", sensor="ambient_celsius"),
    )
    hwmon = source(rig, *sensors)
    assert hwmon.read(at()) == [
        {"attach": "0", "fan_speed_rpm": 1450.0},
        {"attach": "*", "vrm_voltage_volts": pytest.approx(12.072)},
        {"attach": "nvidia:1", "fan_duty_ratio": pytest.approx(0.502, abs=0.001)},
    ]
    assert hwmon.nulled == {("ambient_celsius", "no such channel"): 1}


@pytest.mark.parametrize(
    ("value", "reason"),
    [("4294967295", "sentinel"), ("9000000000", "out of range"), ("-60000", "out of range")],
)
def test_impossible_values_are_null_and_counted(tmp_path: Path, value: str, reason: str) -> None:
    chip(tmp_path, 0, "x", temp1_input=value)
    sensor = HwmonSensor(chip="x", channel="temp1", sensor="ambient_celsius", factor=1.0)
    hwmon = source(tmp_path, sensor)
    (reading,) = hwmon.read(at())
    assert reading["ambient_celsius"] is None
    assert sum(hwmon.nulled.values()) == 1
    if reason == "out of range":
        assert hwmon.nulled == {("ambient_celsius", reason): 1}


def test_a_faulty_channel_is_null_and_counted(tmp_path: Path) -> None:
    chip(tmp_path, 0, "x", temp1_input=21000, temp1_label="Ambient", temp1_fault=1)
    hwmon = source(tmp_path)
    assert hwmon.read(at()) == []
    assert hwmon.nulled == {("ambient_celsius", "faulty channel"): 1}


def test_the_spread_of_the_rail_stands_in_for_its_ripple_and_says_so(rig: Path) -> None:
    hwmon = source(rig)
    rail = rig / "class" / "hwmon" / "hwmon0" / "in0_input"
    readings: list[DeviceReading] = []
    for tick, millivolts in enumerate((12096, 12000, 12048)):
        rail.write_text(f"{millivolts}\n")
        readings = hwmon.read(at(tick))
    assert readings[1] == {
        "attach": "*",
        "vrm_voltage_volts": 12.048,
        "vrm_ripple_volts": pytest.approx(0.096),
        "methods": {"vrm_ripple_volts": "hwmon-sample-spread"},
    }


def test_no_chips_is_not_here_and_a_chip_of_nothing_is_data(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="no monitoring chip under"):
        source(tmp_path).read(at())
    chip(tmp_path, 0, "bogus")
    assert source(tmp_path).read(at()) == []


def test_inputs_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder or file"):
        HwmonSource(AgentSettings(input=tmp_path / "nothing"))
    bad = tmp_path / "bad.json"
    for text in ("{", "[]", "null"):
        bad.write_text(text)
        with pytest.raises(ReadFailed, match="not the JSON of sensors -j"):
            HwmonSource(AgentSettings(input=bad)).read(at())
    odd = {"chip": {"Adapter": "x", "f": {"temp1_input": True, "temp2_input": "a", "x": 1}, "g": 3}}
    bad.write_text(json.dumps(odd))
    assert [c.value for c in of_json(bad.read_bytes())] == [None, None]


# --- with cards ------------------------------------------------------------------------------


class Cards:
    name, enumerates = "cards", True

    def __init__(self, *readings: DeviceReading) -> None:
        self.readings = readings

    def read(self, now: Instant) -> list[DeviceReading]:
        return [dict(reading) for reading in self.readings]

    def close(self) -> None:
        pass


def test_the_inlet_goes_to_every_card_but_those_that_are_lost(rig: Path) -> None:
    cards = Cards(
        {"device": "GPU-1", "index": 0},
        {"device": "TT-1", "index": 0, "vrm_voltage_volts": 0.8},
        {"device": "GPU-2", "index": 1, "state": "lost"},
    )
    tick = Sampler(Envelope("lab", "rig1", "b"), [source(rig), cards], 5.0).tick(at())
    assert tick.telemetry is not None
    one, two, lost = tick.telemetry["devices"]
    assert (one["ambient_celsius"], two["ambient_celsius"]) == (31.5, 31.5)
    # A card's own voltage comes before the rig's rail.
    assert (one["vrm_voltage_volts"], two["vrm_voltage_volts"]) == (12.096, 0.8)
    assert "ambient_celsius" not in lost
    assert tick.notices == []


def test_a_target_that_is_not_there_is_said_once(rig: Path) -> None:
    sensors = [
        HwmonSensor(chip="asus_ec", channel="fan2", sensor="fan_speed_rpm", device=device)
        for device in ("7", "0", "nvidia:0", "GPU-9", "0000:41:00.0")
    ]
    cards = Cards(
        {"device": "GPU-1", "index": 0, "vendor": "nvidia", "pci_address": "00000000:41:00.0"},
        {"device": "TT-1", "index": 0, "vendor": "tenstorrent"},
    )
    sampler = Sampler(Envelope("lab", "rig1", "b"), [cards, source(rig, *sensors)], 5.0)
    ticks = [sampler.tick(at(i)) for i in range(3)]
    assert [len(tick.notices) for tick in ticks] == [3, 0, 0]
    assert all("no one card answers to" in notice for notice in ticks[0].notices)
    assert ticks[0].telemetry is not None
    assert [d["fan_speed_rpm"] for d in ticks[0].telemetry["devices"]] == [1450.0, None]


def test_before_any_card_answers_nothing_is_said_of_where_a_sensor_belongs(rig: Path) -> None:
    cards = Cards()
    sampler = Sampler(Envelope("lab", "rig1", "b"), [cards, source(rig)], 5.0)
    assert sampler.tick(at(0)).notices == []
    cards.readings = ({"device": "GPU-1", "index": 0},)
    tick = sampler.tick(at(1))
    assert tick.notices == []
    assert tick.telemetry is not None
    assert tick.telemetry["devices"][0]["ambient_celsius"] == 31.5
