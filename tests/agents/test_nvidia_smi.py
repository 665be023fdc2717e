"""The source ``nvidia_smi``: recordings of many drivers, and a tool that hangs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.messages import Envelope
from agents.sampler import Sampler
from agents.settings import AgentSettings
from agents.source import Instant, NotHere, ReadFailed
from agents.sources.nvidia_smi import NvidiaSmiSource
from agents.sources.nvidia_smi_xml import parse
from agents.table import open_source
from contract.errors import ConfigError
from contract.signals import BY_NAME

RECORDINGS = Path(__file__).parents[3] / "shared" / "data" / "device_outputs"
XML = sorted((RECORDINGS / "nvidia_smi_xml").glob("*.xml"))
OTHER = sorted((RECORDINGS / "nvidia_smi_query").glob("*/*.txt"))
absent = pytest.mark.skipif(not XML, reason="the recordings are not beside the repository")

SMI = """<?xml version="1.0" ?>
<nvidia_smi_log><driver_version>570.1</driver_version>
<gpu id="00000000:01:00.0"><product_name>NVIDIA GeForce RTX 3090</product_name>
<uuid>GPU-1</uuid><fan_speed>30 %</fan_speed>
<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width>
<current_link_width>4x</current_link_width></link_widths></pci_gpu_link_info></pci>
<ecc_errors><volatile>
<sram_correctable>1</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>2</sram_uncorrectable_secded><dram_correctable>4</dram_correctable>
<dram_uncorrectable>N/A</dram_uncorrectable></volatile>
<aggregate><dram_uncorrectable>99</dram_uncorrectable></aggregate></ecc_errors>
<temperature><gpu_temp>61 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
<gpu_power_readings><average_power_draw>300.00 W</average_power_draw>
<instant_power_draw>310.50 W</instant_power_draw></gpu_power_readings>
<utilization><gpu_util>97 %</gpu_util></utilization></gpu>
<gpu id="00000000:02:00.0"><uuid>GPU-2</uuid>
<temperature><gpu_temp>[GPU is lost]</gpu_temp></temperature></gpu>
</nvidia_smi_log>"""


def test_values_units_details_and_a_lost_card() -> None:
    good, lost = parse(SMI.encode())
    assert good == {
        "device": "GPU-1",
        "index": 0,
        "vendor": "nvidia",
        "model": "NVIDIA GeForce RTX 3090",
        "driver": "570.1",
        "pci_address": "00000000:01:00.0",
        "state": "ok",
        "temperature_celsius": 61.0,
        "memory_temperature_celsius": None,
        "ecc_corrected_total": 5.0,
        "ecc_uncorrected_total": 2.0,
        "fan_duty_ratio": 0.3,
        "power_watts": 310.5,
        "utilization_ratio": 0.97,
        "pcie_link_width": 4.0,
        "pcie_link_width_max": 16.0,
        "details": {"ecc_uncorrected_aggregate_total": 99.0},
    }
    assert lost == {
        "device": "GPU-2",
        "index": 1,
        "vendor": "nvidia",
        "driver": "570.1",
        "pci_address": "00000000:02:00.0",
        "state": "lost",
    }


def test_a_sentence_instead_of_xml_failed_and_is_said() -> None:
    said = b"Unable to determine the device handle for GPU0000:02:00.0: Unknown Error\n"
    with pytest.raises(ReadFailed, match="Unable to determine the device handle"):
        parse(said)
    assert [r["state"] for r in parse(said + SMI.encode())] == ["ok", "lost"]
    with pytest.raises(ReadFailed, match="nothing"):
        parse(b"")
    with pytest.raises(ReadFailed, match="not the output"):
        parse(b"<?xml version='1.0'?><html/>")


def test_a_temperature_of_zero_is_no_measurement() -> None:
    good = parse(SMI.replace("61 C", "0 C").encode())[0]
    assert good["temperature_celsius"] is None
    assert good["nulled"] == {"temperature_celsius": "sentinel"}


# Read by eye in each file: °C, W, fan, lanes now, driver, SM clock in MHz, PCIe generation now.
BY_EYE = {
    "a10g": (17, 25.58, 0.0, 8, "515.105.01", 210, 1),
    "gtx-1660-ti": (40, 8.93, 0.0, 16, "418.43", 300, 1),
    "quadro-p2000-v12": (34, 4.61, 0.46, 8, "525.125.06", 139, 1),
    "quadro-p400": (33, None, 0.34, 16, "418.43", 139, 1),
    "rtx-3060-v12": (42, 11.63, 0.0, 16, "570.124.04", 210, 1),
    "rtx-3080-v12": (31, 22.78, 0.0, 16, "536.40", 210, 4),
    "rtx-3080-v13": (27, 142.33, 0.0, 16, "595.58.03", 1950, 4),
    "rtx-3090-v12": (37, 27.23, 0.0, 16, "525.147.05", 0, 1),
    "tesla-t4": (40, 26.78, None, 8, "515.105.01", 585, 3),
}


@absent
def test_every_recording_has_its_expectation() -> None:
    assert {path.stem for path in XML} == set(BY_EYE)


@absent
@pytest.mark.parametrize("path", XML, ids=lambda path: path.stem)
def test_recordings_of_many_drivers(path: Path) -> None:
    (reading,) = parse(path.read_bytes())
    celsius, watts, duty, lanes, driver, megahertz, generation = BY_EYE[path.stem]
    assert reading["device"].startswith("GPU-")
    assert reading["state"] == "ok"
    assert reading["temperature_celsius"] == celsius
    assert reading["power_watts"] == watts
    assert reading["fan_duty_ratio"] == duty
    assert (reading["pcie_link_width"], reading["pcie_link_width_max"]) == (lanes, 16)
    assert reading["driver"] == driver
    assert reading["details"]["sm_clock_hertz"] == megahertz * 1e6
    assert reading["details"]["pcie_link_generation"] == generation
    assert reading["details"]["pcie_replay_total"] == 0
    # Idle cards say so; the two that worked have no reason to hold their clocks back.
    assert reading["details"]["throttle_reasons"] == (
        0 if path.stem in ("rtx-3080-v13", "tesla-t4") else 1
    )
    has_ecc = path.stem in ("a10g", "tesla-t4")
    assert (reading["ecc_uncorrected_total"] == 0) == has_ecc
    assert ("ecc_uncorrected_aggregate_total" in reading["details"]) == has_ecc
    assert ("remapped_rows_failed" in reading["details"]) == (path.stem == "a10g")
    assert ("retired_pages_pending" in reading["details"]) == (path.stem == "tesla-t4")
    for name, value in reading.items():
        if name in BY_NAME and value is not None:
            assert BY_NAME[name].low <= value <= BY_NAME[name].high, name


@absent
@pytest.mark.parametrize("path", OTHER, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_other_outputs_of_the_tool_are_refused_with_the_right_command(path: Path) -> None:
    with pytest.raises(ReadFailed, match="no XML of nvidia-smi -q -x"):
        parse(path.read_bytes())


def test_an_input_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        open_source("nvidia_smi", AgentSettings(input=tmp_path / "none.xml"))


# --- the tool, live --------------------------------------------------------------------------

TOOL = """#!/bin/sh
uuids="GPU-a GPU-b"
[ "$3" = -i ] && uuids=$4
for uuid in $uuids; do
  word="50 C"
  [ -e "{folder}/$uuid" ] && word=$(cat "{folder}/$uuid")
  case $word in
    hang) sleep 3600 ;;
    Unable*) echo "$word"; exit 15 ;;
  esac
  cards="$cards<gpu id='0'><uuid>$uuid</uuid><temperature><gpu_temp>$word</gpu_temp></temperature>"
  cards="$cards</gpu>"
done
echo "<?xml version='1.0'?><nvidia_smi_log>$cards</nvidia_smi_log>"
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A nvidia-smi of two cards; the function makes it say something of one."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(TOOL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    def say(uuid: str, word: str) -> None:
        (tmp_path / uuid).write_text(word)

    return say


def sampler(interval: float) -> Sampler:
    source = NvidiaSmiSource(AgentSettings(sources=("nvidia_smi",), interval_seconds=interval))
    return Sampler(Envelope("lab", "rig1", "boot"), [source], interval)


def ticks(of: Sampler, count: int, interval: float) -> list[tuple[list[str], list[str], int]]:
    """(states, events, notices) of each tick."""
    out = []
    for _ in range(count):
        tick = of.tick(Instant(1.0e9, interval))
        assert tick.telemetry is not None
        devices: list[dict[str, Any]] = tick.telemetry["devices"]
        states = [device["state"] for device in devices]
        out.append((states, [event["type"] for event in tick.events], len(tick.notices)))
        assert [device["index"] for device in devices] == [0, 1]
    return out


def test_a_card_that_hangs_the_tool_is_found_by_asking_each(
    tool: Callable[[str, str], None],
) -> None:
    interval = 2.0
    rig = sampler(interval)
    assert ticks(rig, 1, interval) == [(["ok", "ok"], [], 0)]
    tool("GPU-b", "hang")
    assert ticks(rig, 3, interval) == [
        (["unknown", "unknown"], [], 1),
        (["ok", "unresponsive"], ["device_unresponsive"], 1),
        (["ok", "unresponsive"], [], 0),
    ]
    tool("GPU-b", "51 C")
    assert ticks(rig, 2, interval) == [
        (["ok", "ok"], ["device_returned"], 0),
        (["ok", "ok"], [], 0),
    ]


def test_a_card_whose_loss_silences_the_tool(tool: Callable[[str, str], None]) -> None:
    rig = sampler(5.0)
    ticks(rig, 1, 5.0)
    tool("GPU-b", "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.")
    assert ticks(rig, 2, 5.0) == [
        (["unknown", "unknown"], [], 1),
        (["ok", "lost"], ["device_lost"], 1),
    ]


def test_an_absent_tool_is_not_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHere, match="the program nvidia-smi is not installed"):
        NvidiaSmiSource(AgentSettings(sources=("nvidia_smi",))).read(Instant(0.0, 0.0))
