"""Contract tests over the table of sources, and each source's own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.settings import AgentSettings, ClockSettings, SimSettings
from agents.source import Instant, NoSample, NotHere
from agents.table import SOURCES, open_source
from contract.errors import ConfigError
from contract.signals import BY_NAME, STATES

ROOT = Path(__file__).parents[2]
T0 = 1_767_225_600.0

SMI = """<?xml version="1.0" ?>
<nvidia_smi_log><driver_version>570.1</driver_version><gpu id="00000000:01:00.0">
<uuid>GPU-1</uuid><temperature><gpu_temp>61 C</gpu_temp></temperature></gpu></nvidia_smi_log>"""


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
