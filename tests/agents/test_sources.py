"""Contract tests over the table of sources, and each source's own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.settings import AgentSettings, ClockSettings, SimSettings
from agents.source import Instant, NoSample, NotHere, ReadFailed
from agents.sources.nvidia_smi import parse
from agents.table import SOURCES, open_source
from contract.errors import ConfigError
from contract.signals import BY_NAME, STATES

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT.parent / "shared" / "data" / "device_outputs" / "nvidia_smi_xml"
XML = sorted(RECORDINGS.glob("*.xml"))
T0 = 1_767_225_600.0

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


def now(tick: int = 0) -> Instant:
    return Instant(T0 + 5 * tick, 1000.0 + 5 * tick)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "smi.xml"
    path.write_text(SMI)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    seconds = [0, 5, 20]
    table = pa.table(
        {
            "ts": pa.array([int(T0 + s) * 1000 for s in seconds], pa.timestamp("ms", "UTC")),
            "node": ["rig1"] * 3,
            "device": ["a"] * 3,
            "temperature_celsius": [60.0, 61.0, 62.0],
        }
    )
    pq.write_table(table, tmp_path / "telemetry.parquet")
    return tmp_path


def settings_for(name: str, recording: Path, dataset: Path) -> AgentSettings:
    inputs = {"nvidia_smi": recording, "replay": dataset}
    return AgentSettings(site="lab", node="rig1", sources=(name,), input=inputs.get(name))


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_keeps_the_contract(name: str, recording: Path, dataset: Path) -> None:
    source = open_source(name, settings_for(name, recording, dataset))
    assert source.name == name
    assert isinstance(source.enumerates, bool)
    try:
        readings = source.read(now())
    except NotHere:
        readings = []  # no such hardware where the tests run
    names = [reading["device"] for reading in readings]
    assert len(names) == len(set(names))
    for reading in readings:
        assert reading.get("state", "ok") in STATES
        for key, value in reading.items():
            if key in BY_NAME and value is not None:
                assert BY_NAME[key].low <= value <= BY_NAME[key].high, key
    source.close()
    source.close()


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(ConfigError, match="source 'nope' is not known; known are"):
        open_source("nope", AgentSettings())


def test_importing_the_agent_stays_light() -> None:
    heavy = "numpy", "pyarrow", "pynvml", "simulator", "faust", "tensorflow", "rich", "pandas"
    code = (
        "import sys, agents.table, agents.sampler, agents.run, agents.edge.service;"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- sim -------------------------------------------------------------------------------------


def test_sim_is_the_same_story_for_the_same_seed() -> None:
    def play(seed: int) -> list[Any]:
        source = open_source(
            "sim",
            AgentSettings(
                node="rig002",
                sources=("sim",),
                sim=SimSettings(rigs=2, cards=2, seed=seed),
                clock=ClockSettings(speed=60.0, start=T0 - 300),
            ),
        )
        return [source.read(now(tick)) for tick in range(5)]

    assert play(7) == play(7)
    assert play(7) != play(8)


def test_sim_plays_the_first_rig_under_any_other_name() -> None:
    sim = SimSettings(rigs=2, cards=1)
    first = open_source("sim", AgentSettings(node="rig001", sources=("sim",), sim=sim))
    other = open_source("sim", AgentSettings(node="garage", sources=("sim",), sim=sim))
    assert first.read(now())[0]["device"] == other.read(now())[0]["device"]
    with pytest.raises(ConfigError, match="story_node 'rig009'"):
        open_source(
            "sim", AgentSettings(sources=("sim",), sim=SimSettings(rigs=2, story_node="rig009"))
        )


# --- replay ----------------------------------------------------------------------------------


def test_replay_plays_rows_on_the_agents_clock_and_is_silent_in_gaps(dataset: Path) -> None:
    source = open_source("replay", AgentSettings(node="rig1", sources=("replay",), input=dataset))
    heard: list[float | None] = []
    for tick in range(7):
        try:
            heard.append(source.read(now(tick))[0]["temperature_celsius"])
        except NoSample:
            heard.append(None)
    assert heard == [60.0, 61.0, None, None, 62.0, None, None]


def test_replay_needs_an_input() -> None:
    with pytest.raises(ConfigError, match="needs --input"):
        open_source("replay", AgentSettings(sources=("replay",)))


# --- nvidia_smi ------------------------------------------------------------------------------


def test_smi_reads_values_units_and_a_lost_card() -> None:
    good, lost = parse(SMI.encode())
    assert good == {
        "device": "GPU-1",
        "index": 0,
        "vendor": "nvidia",
        "model": "NVIDIA GeForce RTX 3090",
        "driver": "570.1",
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
    }
    assert lost == {
        "device": "GPU-2",
        "index": 1,
        "vendor": "nvidia",
        "driver": "570.1",
        "state": "lost",
    }


def test_smi_that_prints_a_sentence_failed_and_says_it() -> None:
    said = b"Unable to determine the device handle for GPU0000:02:00.0: Unknown Error\n"
    with pytest.raises(ReadFailed, match="Unable to determine the device handle"):
        parse(said)
    with pytest.raises(ReadFailed, match="nothing"):
        parse(b"")
    with pytest.raises(ReadFailed, match="not the output"):
        parse(b"<html/>")


@pytest.mark.skipif(not XML, reason="the recordings of nvidia-smi are not beside the repository")
@pytest.mark.parametrize("path", XML, ids=lambda path: path.stem)
def test_smi_recordings(path: Path) -> None:
    (reading,) = parse(path.read_bytes())
    assert reading["device"].startswith("GPU-")
    assert reading["state"] == "ok"
    assert 10 < reading["temperature_celsius"] < 60
    assert reading["pcie_link_width_max"] == 16.0
    assert reading["pcie_link_width"] in (8.0, 16.0)
    assert (reading["power_watts"] is None) == (path.stem == "quadro-p400")
    has_ecc = path.stem in ("a10g", "tesla-t4")
    assert (reading["ecc_uncorrected_total"] == 0.0) == has_ecc
    assert (reading["fan_duty_ratio"] is None) == (path.stem == "tesla-t4")
