"""Tenstorrent cards: recordings of tt-smi, a hand-made sysfs, sentinels, standstill, wraps."""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.child import SlowTool
from agents.formats import tt_sysfs
from agents.formats.tt_smi import device_name, parse
from agents.messages import Envelope
from agents.sampler import Sampler
from agents.sensor_settings import TenstorrentSettings
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from agents.sources.tenstorrent import TenstorrentSource
from contract.errors import ConfigError
from contract.signals import BY_NAME

RECORDINGS = Path(__file__).parents[3] / "shared/data/device_outputs/tt_smi"
needs_recordings = pytest.mark.skipif(
    not RECORDINGS.exists(), reason="recordings are not beside the repository"
)


def at(tick: int) -> Instant:
    return Instant(1_767_225_600.0 + 5 * tick, 1000.0 + 5 * tick)


def plausible(reading: DeviceReading) -> bool:
    return all(
        value is None or BY_NAME[key].low <= value <= BY_NAME[key].high
        for key, value in reading.items()
        if key in BY_NAME
    )


# --- tt-smi ----------------------------------------------------------------------------------


def snapshot(**sections: Any) -> bytes:
    chip = {
        "smbus_telem": {
            "VCORE": "0x31b",
            "ASIC_TEMPERATURE": "0x3690365",
            "TDP": "0x64000c",
            "TIMER_HEARTBEAT": "0x10",
        },
        "board_info": {"bus_id": "0000:01:00.0", "board_type": "p150a", "board_id": "40331914049"},
        "telemetry": {
            "voltage": "0.80",
            "current": " 16.0",
            "power": " 12.0",
            "asic_temperature": " 54.3",
        },
    }
    for name, values in sections.items():
        chip[name] = {**chip[name], **values}
    return json.dumps({"host_info": {"Driver": "TT-KMD 2.3.0"}, "device_info": [chip]}).encode()


def read(printed: bytes) -> tuple[DeviceReading, Counter[tuple[str, str]]]:
    nulled: Counter[tuple[str, str]] = Counter()
    (chip,) = parse(printed, nulled)
    return chip.reading, nulled


@needs_recordings
def test_the_recorded_n150() -> None:
    (chip,) = parse((RECORDINGS / "single_n150_gpu.json").read_bytes(), Counter())
    known = {k: v for k, v in chip.reading.items() if v is not None}
    assert known == {
        "device": "TT-1000000000000000",
        "index": 0,
        "vendor": "tenstorrent",
        "model": "n150",
        "serial": "1000000000000000",
        "driver": "TT-KMD 1.33",
        "pci_address": "0000:01:00.0",
        "state": "ok",
        "temperature_celsius": 54.3,
        "vrm_voltage_volts": 0.8,
        "power_watts": 12.0,
        "methods": {"power_watts": "asic-power"},
        "pcie_link_width": 4.0,
    }
    assert chip.heartbeat == 0x6B1943  # of ARC0_HEALTH, as this firmware has no other


@needs_recordings
def test_the_recorded_galaxy_has_32_chips_told_apart() -> None:
    source = TenstorrentSource(AgentSettings(input=RECORDINGS / "galaxy.json"))
    readings = source.read(at(0))
    assert len({r["device"] for r in readings}) == 32
    assert [r["index"] for r in readings] == list(range(32))
    assert all(20 < r["temperature_celsius"] < 60 and plausible(r) for r in readings)
    assert Counter(r["pcie_link_width"] for r in readings) == {1.0: 28, 8.0: 4}
    # A recording's heartbeat cannot move, which is no standstill.
    for tick in range(1, 6):
        assert {r["state"] for r in source.read(at(tick))} == {"ok"}
    assert source.nulled == {}


@needs_recordings
def test_the_edited_snapshots_are_refused_or_say_little() -> None:
    edited = RECORDINGS / "edited"
    with pytest.raises(ReadFailed, match="gave no JSON"):
        parse((edited / "invalid_json.json").read_bytes(), Counter())
    with pytest.raises(ReadFailed, match="no list device_info"):
        parse((edited / "missing_device_info.json").read_bytes(), Counter())
    assert parse((edited / "empty_device_info.json").read_bytes(), Counter()) == []
    chips = parse((edited / "blackhole_8xp150.json").read_bytes(), Counter())
    assert [c.reading["state"] for c in chips] == ["unknown"] * 8
    assert len({c.reading["device"] for c in chips}) == 8


def test_a_missing_tag_is_null_whatever_tt_smi_prints_for_it() -> None:
    # tt-smi backend.py: 10000.00 V, 0.0 °C, 0 RPM, 0 A for what a firmware does not tell.
    reading, nulled = read(
        snapshot(
            smbus_telem={"VCORE": None, "ASIC_TEMPERATURE": None, "TDP": None, "FAN_RPM": None},
            telemetry={
                "voltage": "10000.00",
                "asic_temperature": " 0.0",
                "power": " 0.0",
                "fan_rpm": "0",
            },
        )
    )
    for sensor in ("vrm_voltage_volts", "temperature_celsius", "power_watts", "fan_speed_rpm"):
        assert reading[sensor] is None
        assert nulled[sensor, "missing tag"] == 1
    assert "methods" not in reading
    reading, nulled = read(snapshot(telemetry={"voltage": "10000.00"}))
    assert reading["vrm_voltage_volts"] is None
    assert reading["temperature_celsius"] == 54.3


def test_a_hung_chip_is_unresponsive_and_has_no_values() -> None:
    # tt-metal#30055
    reading, nulled = read(
        snapshot(
            telemetry={
                "asic_temperature": "65536.0",
                "voltage": "4294967.30",
                "power": "4294967295.0",
            }
        )
    )
    assert reading["state"] == "unresponsive"
    assert not any(key in BY_NAME for key in reading)
    assert nulled == {("temperature_celsius", "hung chip"): 1}
    ones = dict.fromkeys(("VCORE", "ASIC_TEMPERATURE", "TDP", "TIMER_HEARTBEAT"), "0xffffffff")
    assert read(snapshot(smbus_telem=ones))[0]["state"] == "unresponsive"


def test_blackhole_tells_board_power_memory_and_its_errors() -> None:
    reading, _ = read(
        snapshot(
            smbus_telem={
                "INPUT_POWER": "0x50",
                "MAX_GDDR_TEMP": "0x3c",
                "GDDR_0_1_CORR_ERRS": "0x01020304",
                "GDDR_2_3_CORR_ERRS": "0x0",
                "GDDR_UNCORR_ERRS": "0x5",
                "FAN_RPM": "0x5dc",
                "FAN_SPEED": "0x23",
            },
            telemetry={"board_power": " 80.0", "fan_speed": " 35"},
        )
    )
    assert reading["power_watts"] == 80.0
    assert "methods" not in reading
    assert reading["memory_temperature_celsius"] == 60.0
    assert (reading["ecc_corrected_total"], reading["ecc_uncorrected_total"]) == (10.0, 2.0)
    assert (reading["fan_speed_rpm"], reading["fan_duty_ratio"]) == (1500.0, pytest.approx(0.35))
    without, _ = read(snapshot(telemetry={"board_power": "N/A"}))
    assert (without["power_watts"], without["methods"]) == (12.0, {"power_watts": "asic-power"})
    assert without["ecc_corrected_total"] is None


@pytest.mark.parametrize(
    ("serial", "board", "address", "side", "name"),
    [
        ("40331914049", "p150a", "0000:01:00.0", "L", "TT-0000040331914049"),
        ("0000040331914049", "p150a", "0000:07:00.0", "L", "TT-0000040331914049"),
        ("100014511", "n300", "0000:01:00.0", "L", "TT-0000000100014511-L"),
        ("100014511", "n300", None, "R", "TT-0000000100014511-R"),
        ("100", "tt-galaxy-wh", "0000:c1:00.0", "L", "TT-0000000000000100-0000:c1:00.0"),
        ("0000", "p150b", "0000:21:00.0", "L", "TT-0000:21:00.0"),
        (None, None, None, "L", "TT-unknown"),
    ],
)
def test_names_follow_the_board_not_the_slot(
    serial: str | None, board: str | None, address: str | None, side: str, name: str
) -> None:
    assert device_name(serial, board, address, side) == name


@given(st.binary(max_size=300))
def test_any_output_is_read_or_refused(printed: bytes) -> None:
    said = ""
    try:
        parse(printed, Counter())
    except ReadFailed as error:
        said = str(error)
    assert "\n" not in said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["VCORE", "ASIC_TEMPERATURE", "TDP", "FAN_RPM", "GDDR_UNCORR_ERRS"]),
        json_values,
    ),
    st.dictionaries(
        st.sampled_from(["voltage", "asic_temperature", "power", "fan_rpm", "heartbeat"]),
        json_values,
    ),
    st.dictionaries(
        st.sampled_from(["bus_id", "board_type", "board_id", "pcie_width"]), json_values
    ),
)
def test_any_values_are_plausible_or_null(tags: Any, telemetry: Any, board: Any) -> None:
    printed = snapshot(smbus_telem=tags, telemetry=telemetry, board_info=board)
    for chip in parse(printed, Counter()):
        assert plausible(chip.reading)


# --- the tool, beside the samples ------------------------------------------------------------


def tool(tmp_path: Path, script: str, **more: float) -> TenstorrentSource:
    path = tmp_path / "tt.py"
    path.write_text(script)
    settings = TenstorrentSettings(
        root=tmp_path / "sys", command=(sys.executable, str(path)), **more
    )
    return TenstorrentSource(AgentSettings(sources=("tenstorrent",), tenstorrent=settings))


def wait_until_read(source: TenstorrentSource, tick: int = 0) -> list[DeviceReading]:
    for _ in range(1500):
        readings = source.read(at(tick))
        if any(r.get("temperature_celsius") is not None or r["state"] != "ok" for r in readings):
            return readings
        time.sleep(0.01)
    raise AssertionError("the tool never answered")


def test_the_tool_runs_beside_and_a_tick_without_news_has_no_values(tmp_path: Path) -> None:
    printed = snapshot().decode()
    source = tool(tmp_path, f"print(' Detected chips: 1'); print({printed!r})")
    assert source.read(at(0)) == []
    waited = source.pending
    assert waited
    (reading,) = wait_until_read(source)
    assert reading["temperature_celsius"] == 54.3
    assert not source.pending
    (between,) = source.read(at(1))
    assert between["state"] == "ok"
    assert between["device"] == reading["device"]
    assert "temperature_celsius" not in between
    source.close()


def test_a_tool_that_hangs_is_killed_with_its_children_and_the_cards_are_unknown(
    tmp_path: Path,
) -> None:
    # tt-smi#85, #185: tt-smi waits for ever for a chip that hangs.
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "time.sleep(3600)\n"
    )
    source = tool(tmp_path, script, deadline_seconds=20)
    assert source.read(at(0)) == []
    for _ in range(1500):
        if pids.exists() and pids.read_text().endswith("\n"):
            break
        time.sleep(0.01)
    with pytest.raises(ReadFailed, match="did not answer within 20 s and was killed"):
        source.read(at(4))
    for pid in map(int, pids.read_text().split()):
        for _ in range(1500):
            if not _runs(pid):
                break
            time.sleep(0.01)
        assert not _runs(pid)
    source.close()


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_child_that_cannot_be_killed_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import time; time.sleep(3600)"
    slow = SlowTool((sys.executable, "-c", script), every_seconds=1, deadline_seconds=5)
    assert slow.read(0.0, bytes) is None
    killed = []
    with monkeypatch.context() as patch:
        patch.setattr("agents.child.os.killpg", lambda pid, sig: killed.append((pid, sig)))
        for seconds in (5.0, 10.0, 15.0):
            with pytest.raises(ReadFailed, match="was killed"):
                slow.read(seconds, bytes)
    assert len({pid for pid, _ in killed}) == 1
    assert {sig for _, sig in killed} == {signal.SIGKILL}
    slow.close()
    assert not _runs(killed[0][0])


def test_no_driver_and_no_tool_is_not_here(tmp_path: Path) -> None:
    settings = TenstorrentSettings(root=tmp_path, command=("tt-smi-that-is-not-there", "-s"))
    source = TenstorrentSource(AgentSettings(tenstorrent=settings))
    for tick in range(2):
        with pytest.raises(NotHere, match="tt-kmd is not loaded, and .* is not installed"):
            source.read(at(tick))
    with pytest.raises(ConfigError, match="no such file"):
        TenstorrentSource(AgentSettings(input=tmp_path / "nothing"))


def test_a_tool_that_prints_an_error_failed_and_says_it(tmp_path: Path) -> None:
    source = tool(
        tmp_path, "print('No Tenstorrent devices detected! Exiting'); raise SystemExit(1)"
    )
    with pytest.raises(ReadFailed, match="No Tenstorrent devices detected"):
        wait_until_read(source)
    silent = tool(tmp_path, "raise SystemExit(3)")
    with pytest.raises(ReadFailed, match="ended with code 3 and said nothing"):
        wait_until_read(silent)


def test_a_failing_tool_is_said_once_and_not_taken_for_well_while_it_runs_again(
    tmp_path: Path,
) -> None:
    source = tool(tmp_path, "print('no chips here')", every_seconds=5)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [source], 5.0)
    said: list[str] = []
    for tick in range(6):
        for _ in range(1500):
            said += sampler.tick(at(tick)).notices
            if sampler.reads["tenstorrent", "failed"] > 2 * tick:
                break
            time.sleep(0.01)
    assert len(said) == 1
    assert "gave no JSON" in said[0]
    sampler.close()


def test_a_heartbeat_equal_in_three_snapshots_is_unresponsive(tmp_path: Path) -> None:
    source = tool(tmp_path, f"print({snapshot().decode()!r})", every_seconds=5)
    states = [wait_until_read(source, tick)[0]["state"] for tick in range(3)]
    assert states == ["ok", "ok", "unresponsive"]
    source.close()


# --- sysfs -----------------------------------------------------------------------------------


def make_sysfs(root: Path, cards: int = 1) -> list[Path]:
    """A tree as tt-kmd 2.7 makes it for Blackhole boards; gives the PCI device folders."""
    made = []
    for n in range(cards):
        device = root / "devices" / "pci0000:00" / f"0000:0{n + 1}:00.0"
        chip = device / "tenstorrent" / f"tenstorrent!{n}"
        hwmon = device / "hwmon" / f"hwmon{n + 3}"
        counters = chip / "pcie_perf_counters"
        for folder in (hwmon, counters, root / "class" / "tenstorrent"):
            folder.mkdir(parents=True, exist_ok=True)
        files = {
            chip / "tt_serial": f"000004033191404{n}",
            chip / "tt_card_type": "p150a",
            chip / "tt_heartbeat": "100",
            chip / "tt_aiclk": "800",
            chip / "tt_therm_trip_count": "0",
            counters / "mst_rd_data_word_received0": "4294967290",
            hwmon / "name": "blackhole",
            hwmon / "temp1_input": "54321",
            hwmon / "temp1_label": "asic_temp",
            hwmon / "in0_input": "742",
            hwmon / "in0_label": "vcore",
            hwmon / "curr1_input": "41000",
            hwmon / "curr1_label": "current",
            hwmon / "power1_input": "30000000",
            hwmon / "power1_label": "power",
            hwmon / "fan1_input": "1500",
            hwmon / "fan1_label": "fan_rpm",
            device / "current_link_width": "8",
            device / "max_link_width": "16",
        }
        for path, text in files.items():
            path.write_text(text + "\n")
        (chip / "device").symlink_to(device)
        (root / "class" / "tenstorrent" / f"tenstorrent!{n}").symlink_to(chip)
        made.append(device)
    return made


def write(device: Path, name: str, value: object) -> None:
    (found,) = device.rglob(name)
    found.write_text(f"{value}\n")


def of_sysfs(root: Path) -> TenstorrentSource:
    settings = TenstorrentSettings(root=root, command=("tt-smi-that-is-not-there",))
    return TenstorrentSource(AgentSettings(tenstorrent=settings))


def test_sysfs_gives_sensors_identity_and_link(tmp_path: Path) -> None:
    make_sysfs(tmp_path)
    (reading,) = of_sysfs(tmp_path).read(at(0))
    assert reading == {
        "device": "TT-0000040331914040",
        "index": 0,
        "vendor": "tenstorrent",
        "model": "p150a",
        "serial": "0000040331914040",
        "pci_address": "0000:01:00.0",
        "state": "ok",
        "temperature_celsius": pytest.approx(54.321),
        "vrm_voltage_volts": pytest.approx(0.742),
        "power_watts": pytest.approx(30.0),
        "fan_speed_rpm": 1500.0,
        "methods": {"power_watts": "asic-power"},
        "pcie_link_width": 8,
        "pcie_link_width_max": 16,
        "details": {
            "core_current_amperes": 41.0,
            "core_clock_megahertz": 800.0,
            "therm_trips_total": 0.0,
            "pcie_bytes_total": 4294967290.0 * 32,
        },
    }


def test_wormhole_boards_with_two_chips_give_two_devices(tmp_path: Path) -> None:
    (device,) = make_sysfs(tmp_path)
    hwmon = device / "hwmon" / "hwmon3"
    write(device, "tt_card_type", "n300")
    write(device, "temp1_label", "asic1_temp")
    write(device, "in0_label", "vcore1")
    (hwmon / "temp2_label").write_text("asic2_temp\n")
    (hwmon / "temp2_input").write_text("61000\n")
    left, right = of_sysfs(tmp_path).read(at(0))
    assert (left["device"][-2:], right["device"][-2:]) == ("-L", "-R")
    assert (left["vrm_voltage_volts"], right["vrm_voltage_volts"]) == (pytest.approx(0.742), None)
    assert right["temperature_celsius"] == 61.0


def test_impossible_values_are_null_and_counted_and_the_others_stay(tmp_path: Path) -> None:
    # tt-kmd#213: 3.21 kV, 4.08 kW and 2.8 million rpm beside a good temperature.
    (device,) = make_sysfs(tmp_path)
    write(device, "in0_input", 3211313)
    write(device, "power1_input", 4080000000)
    write(device, "fan1_input", 2744786)
    source = of_sysfs(tmp_path)
    (reading,) = source.read(at(0))
    assert reading["state"] == "ok"
    assert reading["temperature_celsius"] == pytest.approx(54.321)
    for sensor in ("vrm_voltage_volts", "power_watts", "fan_speed_rpm"):
        assert reading[sensor] is None
        assert source.nulled[sensor, "out of range"] == 1
    # tt-kmd#282: a board without fan control says 0xffffffff, and nothing is wrong with it.
    write(device, "fan1_input", 4294967295)
    (reading,) = source.read(at(1))
    assert (reading["state"], reading["fan_speed_rpm"]) == ("ok", None)
    assert source.nulled["fan_speed_rpm", "sentinel"] == 1


def test_a_hung_chip_is_one_event_and_no_spike_and_the_other_flows_on(tmp_path: Path) -> None:
    # tt-metal#30055: 65536.0 °C, 4294967295 rpm, 4.29 MV, 4.29 kW
    first, second = make_sysfs(tmp_path, cards=2)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [of_sysfs(tmp_path)], 5.0)
    good = [sampler.tick(at(i)) for i in range(2)]
    assert [e["type"] for tick in good for e in tick.events] == ["pcie_width_low"] * 2
    write(first, "temp1_input", 65536000)
    write(first, "in0_input", 4294967295)
    write(first, "power1_input", 4294967295000000)
    write(first, "fan1_input", 4294967295)
    bad = []
    for i in range(2, 5):
        write(second, "tt_heartbeat", 100 + i)
        bad.append(sampler.tick(at(i)))
    assert [(e["type"], e["device"]) for tick in bad for e in tick.events] == [
        ("device_unresponsive", "TT-0000040331914040")
    ]
    for tick in bad:
        assert tick.telemetry is not None
        hung, well = tick.telemetry["devices"]
        assert (hung["state"], well["state"]) == ("unresponsive", "ok")
        assert hung["temperature_celsius"] is None
        assert hung["temperature_rate_celsius_per_second"] is None
        assert well["temperature_celsius"] == pytest.approx(54.321)


def test_a_heartbeat_that_stands_still_for_three_polls_is_unresponsive_until_it_moves(
    tmp_path: Path,
) -> None:
    # field notes 5, row 8
    (device,) = make_sysfs(tmp_path)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [of_sysfs(tmp_path)], 5.0)
    states, told = [], []
    for tick, beat in enumerate((100, 150, 150, 150, 150, 200, 0, 4294967295, 4294967295, 7)):
        write(device, "tt_heartbeat", beat)
        out = sampler.tick(at(tick))
        assert out.telemetry is not None
        states.append(out.telemetry["devices"][0]["state"])
        told += [e["type"] for e in out.events if e["type"].startswith("device")]
    assert states == ["ok", "ok", "ok", *["unresponsive"] * 2, *["ok"] * 5]
    assert told == ["device_unresponsive", "device_returned"]


def test_old_drivers_without_a_heartbeat_are_not_judged_by_it(tmp_path: Path) -> None:
    (device,) = make_sysfs(tmp_path)
    next(device.rglob("tt_heartbeat")).unlink()
    source = of_sysfs(tmp_path)
    assert {source.read(at(i))[0]["state"] for i in range(5)} == {"ok"}


def test_a_card_that_left_the_bus_is_lost(tmp_path: Path) -> None:
    make_sysfs(tmp_path, cards=2)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [of_sysfs(tmp_path)], 5.0)
    sampler.tick(at(0))
    (tmp_path / "class" / "tenstorrent" / "tenstorrent!1").unlink()
    tick = sampler.tick(at(1))
    assert [(e["type"], e["device"]) for e in tick.events] == [
        ("device_lost", "TT-0000040331914041")
    ]


def test_a_card_whose_files_answer_with_errors_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sysfs(tmp_path, cards=2)
    source = of_sysfs(tmp_path)
    source.read(at(0))
    real = Path.read_text

    def broken(path: Path, *args: Any, **kwargs: Any) -> str:
        if "tenstorrent!1" in str(path) or "0000:02:00.0" in str(path):
            raise OSError(5, os.strerror(5))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", broken)
    first, second = source.read(at(1))
    assert (first["state"], second["state"]) == ("ok", "lost")
    assert second["device"] == "TT-0000040331914041"


def test_the_only_card_whose_files_answer_with_errors_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sysfs(tmp_path)
    source = of_sysfs(tmp_path)
    (before,) = source.read(at(0))

    def broken(path: Path, *args: Any, **kwargs: Any) -> str:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(Path, "read_text", broken)
    (reading,) = source.read(at(1))
    assert (reading["state"], reading["device"]) == ("lost", before["device"])


def test_a_card_whose_read_hangs_is_unresponsive_and_the_other_flows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # field notes 5, row 9: one event, and the healthy card keeps its cadence
    _, well = make_sysfs(tmp_path, cards=2)
    settings = TenstorrentSettings(root=tmp_path)
    made = AgentSettings(tenstorrent=settings, interval_seconds=0.5)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [TenstorrentSource(made)], 0.5)
    sampler.tick(at(0))
    let_go = threading.Event()
    real = tt_sysfs.read_card

    def hangs(folder: Path, index: int, nulled: Any) -> Any:
        if index == 0:
            let_go.wait(60)
        return real(folder, index, nulled)

    monkeypatch.setattr(tt_sysfs, "read_card", hangs)
    ticks = []
    for i in (1, 2):
        write(well, "tt_heartbeat", 100 + i)
        ticks.append(sampler.tick(at(i)))
    for tick in ticks:
        assert tick.telemetry is not None
        assert [d["state"] for d in tick.telemetry["devices"]] == ["unresponsive", "ok"]
    assert [(e["type"], e["device"]) for tick in ticks for e in tick.events] == [
        ("device_unresponsive", "TT-0000040331914040")
    ]
    let_go.set()


def test_thermal_trips_are_events_and_a_reset_is_none(tmp_path: Path) -> None:
    (device,) = make_sysfs(tmp_path)
    source = of_sysfs(tmp_path)
    told = []
    for tick, trips in enumerate((3, 3, 5, 0, 1)):
        write(device, "tt_therm_trip_count", trips)
        source.read(at(tick))
        told += [e.message for e in source.events(at(tick))]
    assert told == [
        "2 more thermal trips of the card, 5 in all",
        "1 more thermal trips of the card, 1 in all",
    ]


def test_pcie_words_are_counted_across_the_wrap(tmp_path: Path) -> None:
    # field notes 5, row 6: 4294967290 → 10 is 16 more, of 32 bytes each
    (device,) = make_sysfs(tmp_path)
    source = of_sysfs(tmp_path)
    totals = []
    for tick, words in enumerate((4294967290, 10, 12, 3)):
        write(device, "mst_rd_data_word_received0", words)
        write(device, "tt_heartbeat", tick)
        (reading,) = source.read(at(tick))
        totals.append(reading["details"]["pcie_bytes_total"] / 32)
    wrapped = 2**32
    assert totals == [wrapped - 6, wrapped + 10, wrapped + 12, 3]  # the last one is a reset


def test_core_voltage_spread_stands_in_for_the_ripple_and_says_so(tmp_path: Path) -> None:
    (device,) = make_sysfs(tmp_path)
    source = of_sysfs(tmp_path)
    for tick, millivolts in enumerate((740, 752, 745)):
        write(device, "in0_input", millivolts)
        write(device, "tt_heartbeat", tick)
        (reading,) = source.read(at(tick))
    assert reading["vrm_ripple_volts"] == pytest.approx(0.012)
    assert reading["methods"]["vrm_ripple_volts"] == "vcore-sample-spread"


def test_without_sensors_in_sysfs_the_tool_is_asked(tmp_path: Path) -> None:
    # tt-firmware#9: with some firmware tt-kmd gives no hwmon
    (device,) = make_sysfs(tmp_path / "sys")
    for file in device.rglob("*_label"):
        file.unlink()
    source = tool(tmp_path, f"print({snapshot().decode()!r})")
    assert wait_until_read(source)[0]["temperature_celsius"] == 54.3
    source.close()


def test_a_copy_of_sysfs_is_an_input(tmp_path: Path) -> None:
    make_sysfs(tmp_path)
    (reading,) = TenstorrentSource(AgentSettings(input=tmp_path)).read(at(0))
    assert reading["model"] == "p150a"
