"""The settings of the rig's sensors, and those that the pages show."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agents.merge import METHODS, attach, merge, pci_slot
from agents.settings import AgentSettings
from agents.source import DeviceReading
from contract.errors import ConfigError
from rigcanary.config import load

ROOT = Path(__file__).parents[2]
BLOCKS = [
    (page, block)
    for page in ("agents.md", "sensors.md")
    for block in re.findall(
        r"^```toml\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S
    )
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_settings_on_the_pages_are_real(page: str, block: str) -> None:
    AgentSettings.model_validate(tomllib.loads(block))


def test_the_page_shows_the_defaults() -> None:
    (shown,) = [
        AgentSettings.model_validate(tomllib.loads(b)) for p, b in BLOCKS if p == "agents.md"
    ]
    made = AgentSettings()
    for name in ("hwmon", "iio", "ipmi", "tenstorrent", "kernel_log"):
        assert getattr(shown, name) == getattr(made, name)


def test_a_mapping_that_is_none_is_named(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('[[hwmon.sensors]]\nchip = "x"\nchannel = "fan1"\nsensor = "speed"\n')
    with pytest.raises(ConfigError, match=r"hwmon\.sensors\.0\.sensor"):
        load(AgentSettings, process="agent", config_file=config)
    config.write_text('[[iio.sensors]]\nchip = "x"\nsensor = "vibration"\naxis = "x"\n')
    with pytest.raises(ConfigError, match=r"iio\.sensors\.0\.axis: no such setting"):
        load(AgentSettings, process="agent", config_file=config)


def test_an_agent_with_sensors_of_the_rig_only_speaks_for_the_node() -> None:
    assert AgentSettings(sources=("hwmon", "ipmi", "iio", "kernel_log")).rig_only
    assert not AgentSettings(sources=("hwmon", "nvml")).rig_only


def test_the_pages_name_every_method() -> None:
    page = (ROOT / "docs" / "sensors.md").read_text()
    assert [m for m in METHODS if f"`{m}`" not in page] == []


# --- merging ---------------------------------------------------------------------------------


def merged(*readings: DeviceReading) -> DeviceReading:
    into: dict[str, DeviceReading] = {}
    for reading in readings:
        merge(into, {"device": "a", **reading})
    return into["a"]


def ripple(volts: float | None, method: str | None = None) -> DeviceReading:
    methods = {} if method is None else {"methods": {"vrm_ripple_volts": method}}
    return {"vrm_ripple_volts": volts, **methods}


@pytest.mark.parametrize(
    ("readings", "volts", "method"),
    [
        ([ripple(1, "power-sample-spread"), ripple(2)], 2, None),
        ([ripple(2), ripple(1, "power-sample-spread")], 2, None),
        ([ripple(1, METHODS[2]), ripple(2, METHODS[1])], 2, METHODS[1]),
        ([ripple(1, METHODS[1]), ripple(2, METHODS[2])], 1, METHODS[1]),
        ([ripple(1, "another"), ripple(2, METHODS[-1])], 2, METHODS[-1]),
        ([ripple(1), ripple(2)], 1, None),
        ([ripple(None), ripple(2, METHODS[1])], 2, METHODS[1]),
        ([ripple(1, METHODS[1]), ripple(None)], 1, METHODS[1]),
    ],
)
def test_what_is_measured_beats_what_stands_in(
    readings: list[DeviceReading], volts: float, method: str | None
) -> None:
    found = merged(*readings)
    assert found["vrm_ripple_volts"] == volts
    assert found.get("methods", {}).get("vrm_ripple_volts") == method
    assert found.get("methods") != {}


def test_details_of_two_sources_are_joined_and_one_that_could_look_knows_the_state() -> None:
    found = merged(
        {"details": {"a": 1}, "state": "unknown"}, {"details": {"a": 2, "b": 3}, "state": "ok"}
    )
    assert found == {"device": "a", "details": {"a": 1, "b": 3}, "state": "ok"}
    assert merged({"state": "lost"}, {"state": "ok"})["state"] == "lost"


@pytest.mark.parametrize(
    "address", ["0000:9b:00", "00000000:9B:00.0", "PCI:0000:9b:00.1", "9b:00.0", "0:9b:00"]
)
def test_one_slot_however_it_is_written(address: str) -> None:
    assert pci_slot(address) == "0000:9b:00"


def test_a_domain_of_its_own_stays_one() -> None:
    assert pci_slot("00010001:9b:00.0") == "10001:9b:00"


def cards() -> dict[str, Any]:
    return {
        "GPU-1": {"device": "GPU-1", "index": 0, "vendor": "nvidia", "pci_address": "0000:01:00.0"},
        "TT-1": {"device": "TT-1", "index": 0, "vendor": "tenstorrent"},
        "TT-2": {"device": "TT-2", "index": 1, "vendor": "tenstorrent", "state": "unresponsive"},
    }


@pytest.mark.parametrize(
    ("target", "reached", "complaints"),
    [
        ("*", ["GPU-1", "TT-1"], 0),
        ("?", [], 1),
        ("TT-1", ["TT-1"], 0),
        ("0000:01:00", ["GPU-1"], 0),
        ("tenstorrent:0", ["TT-1"], 0),
        ("0", [], 1),
        ("1", [], 0),
        ("9", [], 1),
    ],
)
def test_targets(target: str, reached: list[str], complaints: int) -> None:
    rig = cards()
    said = list(attach(rig, [{"attach": target, "ambient_celsius": 24.0}]))
    assert [name for name, card in rig.items() if "ambient_celsius" in card] == reached
    assert len(said) == complaints
    assert not any("attach" in card for card in rig.values())
