"""Contract tests over the table of sources, and each source's own."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pynvml
import pytest

from agents.messages import Envelope
from agents.sampler import Sampler
from agents.settings import AgentSettings, ClockSettings, SimSettings
from agents.source import Instant, NoSample, NotHere, ReadFailed
from agents.sources.nvidia_smi import parse
from agents.sources.nvml import NvmlSource
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


# --- nvml ------------------------------------------------------------------------------------


class FakeNvml:
    """pynvml's names over cards that are dictionaries; an exception in one is raised."""

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = list(cards)
        self.driver: Any = "570.1"
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        # Constants and exception classes are the real ones.
        return getattr(pynvml, name)

    def _value(self, handle: int, name: str) -> Any:
        self.calls.append(name)
        value = self.cards[handle].get("*", self.cards[handle].get(name))
        if isinstance(value, int) and name not in self.cards[handle]:
            raise pynvml.NVMLError(value)
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if isinstance(value, pynvml.NVMLError):
            raise value
        return value

    def nvmlInit(self) -> None:
        if isinstance(self.driver, pynvml.NVMLError):
            raise self.driver

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> Any:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        if isinstance(self.driver, pynvml.NVMLError):
            raise self.driver
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._value(handle, "uuid")

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return "GeForce GTX 1070 Ti"

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        return self._value(handle, "temperature")

    def nvmlDeviceGetFieldValues(self, handle: int, ids: list[int]) -> Any:
        value = self.cards[handle].get("memory")
        code = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else pynvml.NVML_SUCCESS
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=value))]

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> Any:
        return self._value(handle, f"ecc{kind}")

    def nvmlDeviceGetFanSpeed(self, handle: int) -> Any:
        return self._value(handle, "fan")

    def nvmlDeviceGetFanSpeedRPM(self, handle: int) -> Any:
        return self._value(handle, "rpm")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._value(handle, "power")

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self._value(handle, "util"))

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> Any:
        return self._value(handle, "width")

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> Any:
        return self._value(handle, "width_max")


def gpu(uuid: str = "GPU-1", **values: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "temperature": 60,
        "power": 180_250,
        "util": 97,
        "width": 8,
        "width_max": 16,
        **values,
    }


def nvml_source(fake: FakeNvml) -> NvmlSource:
    return NvmlSource(AgentSettings(), nvml=fake)


def test_nvml_units_and_one_unsupported_field_alone_is_null() -> None:
    # gpustat#161, nvidia_gpu_prometheus_exporter#6: NotSupported must not take the rest along.
    (reading,) = nvml_source(FakeNvml(gpu(fan=None, ecc1=3, memory=84))).read(now())
    assert reading == {
        "device": "GPU-1",
        "index": 0,
        "vendor": "nvidia",
        "model": "GeForce GTX 1070 Ti",
        "driver": "570.1",
        "state": "ok",
        "temperature_celsius": 60.0,
        "memory_temperature_celsius": 84.0,
        "ecc_corrected_total": None,
        "ecc_uncorrected_total": 3.0,
        "fan_speed_rpm": None,
        "fan_duty_ratio": None,
        "power_watts": 180.25,
        "utilization_ratio": 0.97,
        "pcie_link_width": 8,
        "pcie_link_width_max": 16,
    }


def test_nvml_asks_for_an_unsupported_field_once_and_says_nothing() -> None:
    fake = FakeNvml(gpu())
    sampler = Sampler(Envelope("lab", "rig1", "b"), [nvml_source(fake)], 5.0)
    first = [sampler.tick(now(i)) for i in range(10)]
    assert fake.calls.count("fan") == 1
    assert fake.calls.count("temperature") == 10
    assert [tick.notices for tick in first] == [[]] * 10
    assert [len(tick.events) for tick in first] == [1, *[0] * 9]  # eight lanes of sixteen, once


def test_nvml_a_lost_gpu_is_an_event_of_its_own_and_the_other_flows_on() -> None:
    # gpud#604, dcgm-exporter#604: GPU_IS_LOST is not one field's error.
    fake = FakeNvml(gpu("GPU-1"), gpu("GPU-2"))
    sampler = Sampler(Envelope("lab", "rig1", "b"), [nvml_source(fake)], 5.0)
    sampler.tick(now(0))
    fake.cards[1]["*"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    ticks = [sampler.tick(now(i)) for i in range(1, 4)]
    assert [e["type"] for tick in ticks for e in tick.events] == ["device_lost"]
    last = ticks[-1].telemetry
    assert last is not None
    assert [d["state"] for d in last["devices"]] == ["ok", "lost"]
    assert last["devices"][0]["temperature_celsius"] == 60
    del fake.cards[1]["*"]
    assert [e["type"] for e in sampler.tick(now(4)).events] == ["device_returned"]


def test_nvml_nothing_but_unknown_errors_is_lost_one_of_them_is_null() -> None:
    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    fake = FakeNvml(gpu(power=unknown))
    source = nvml_source(fake)
    (reading,) = source.read(now())
    assert (reading["state"], reading["power_watts"]) == ("ok", None)
    fake.cards[0]["*"] = unknown
    assert source.read(now(1))[0]["state"] == "lost"


def test_nvml_a_card_that_is_no_longer_enumerated_is_lost() -> None:
    fake = FakeNvml(gpu("GPU-1"), gpu("GPU-2"))
    sampler = Sampler(Envelope("lab", "rig1", "b"), [nvml_source(fake)], 5.0)
    sampler.tick(now(0))
    del fake.cards[1]
    tick = sampler.tick(now(1))
    assert [(e["type"], e["device"]) for e in tick.events] == [("device_lost", "GPU-2")]


def test_nvml_missing_then_there_then_reloaded() -> None:
    fake = FakeNvml(gpu())
    fake.driver = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    sampler = Sampler(Envelope("lab", "rig1", "b"), [nvml_source(fake)], 5.0)
    notices = []
    for i in range(9):
        if i == 3:
            fake.driver = "570.1"
        if i == 5:
            fake.driver = pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if i == 7:
            fake.driver = "580.2"
        tick = sampler.tick(now(i))
        notices.append(len(tick.notices))
        assert tick.telemetry is not None
        states = [d["state"] for d in tick.telemetry["devices"]]
        assert states == ([] if i < 3 else ["unknown"] if i in (5, 6) else ["ok"])
        assert not [e for e in tick.events if e["type"] == "device_lost"]
    assert notices == [1, 0, 0, 1, 0, 1, 0, 1, 0]


def test_nvml_takes_no_recording(recording: Path) -> None:
    with pytest.raises(ConfigError, match="--input goes with nvidia_smi"):
        open_source("nvml", AgentSettings(input=recording))
