"""The source ``nvml`` over a stub library: the real pynvml, its ctypes and its error codes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import nvml_rig
import pytest
from nvml_rig import Rig, card

from agents.settings import AgentSettings
from agents.table import open_source
from contract.errors import ConfigError

LOST, UNKNOWN, NOT_SUPPORTED, INVALID = "!15", "!999", "!3", "!2"
Start = Callable[..., Rig]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if nvml_rig.compiler() is None:
        pytest.skip("there is no C compiler (apt-get install gcc libc6-dev)")
    return nvml_rig.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def start(library: Path, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(*cards: dict[str, Any], **settings: Any) -> Rig:
            rig: AbstractContextManager[Rig] = nvml_rig.running(
                library, tmp_path, list(cards), **settings
            )
            return stack.enter_context(rig)

        yield begin


def test_values_in_base_units_and_what_the_card_lacks_is_null(start: Start) -> None:
    # gpustat#161, nvidia_gpu_prometheus_exporter#6, dcgm-exporter#82: one field that is not
    # supported takes nothing along, and is no alarm.
    answer = start(card("GPU-a", fan=NOT_SUPPORTED, ecc_uncorrected=3, memory=84)).tick()
    (device,) = answer["devices"]
    assert {key: value for key, value in device.items() if value is not None} == {
        "device": "GPU-a",
        "index": 0,
        "vendor": "nvidia",
        "model": "NVIDIA GeForce GTX 1070 Ti",
        "driver": "570.1",
        "state": "ok",
        "temperature_celsius": 60.0,
        "memory_temperature_celsius": 84.0,
        "ecc_uncorrected_total": 3.0,
        "power_watts": 180.25,
        "utilization_ratio": 0.97,
        "pcie_link_width": 16,
        "pcie_link_width_max": 16,
    }
    assert answer["notices"] == []
    assert answer["events"] == []


def test_what_the_contract_has_no_name_for_is_a_detail(start: Start) -> None:
    rig = start(
        card(
            "GPU-a",
            sm_clock=1500,
            memory_clock=4000,
            throttle="0x40",
            replay=7,
            generation=1,
            generation_max=3,
            retired_corrected=2,
            retired_uncorrected=0,
            retired_pending=1,
            remapped="1 2 0 1",
            ecc_corrected_aggregate=9,
            ecc_uncorrected_aggregate=4,
        )
    )
    answer = rig.tick()
    assert answer["details"]["GPU-a"] == {
        "sm_clock_hertz": 1.5e9,
        "memory_clock_hertz": 4e9,
        "throttle_reasons": 0x40,
        "pcie_replay_total": 7,
        "pcie_link_generation": 1,
        "pcie_link_generation_max": 3,
        "retired_pages_corrected": 2,
        "retired_pages_uncorrected": 0,
        "retired_pages_pending": 1,
        "remapped_rows_corrected": 1,
        "remapped_rows_uncorrected": 2,
        "remapped_rows_pending": 0,
        "remapped_rows_failed": 1,
        "ecc_corrected_aggregate_total": 9,
        "ecc_uncorrected_aggregate_total": 4,
    }
    assert "details" not in answer["devices"][0]


def test_a_field_that_is_not_supported_is_not_asked_for_again(start: Start) -> None:
    rig = start(card("GPU-a", fan=NOT_SUPPORTED))
    answers = [rig.tick() for _ in range(3)]
    assert [answer["notices"] for answer in answers] == [[]] * 3
    rig.cards[0]["fan"] = 30  # the stub would answer now: nobody asks
    assert rig.tick()["devices"][0]["fan_duty_ratio"] is None


def test_a_lost_card_is_an_event_of_its_own_and_the_others_flow_on(start: Start) -> None:
    # gpud#604, dcgm-exporter#604: GPU_IS_LOST is not one field's error.
    rig = start(card("GPU-a"), card("GPU-b"))
    assert rig.states() == ["ok", "ok"]
    whole = rig.cards[1]
    rig.cards[1] = {"uuid": "GPU-b", "*": LOST}
    answers = [rig.tick() for _ in range(3)]
    assert [a["events"] for a in answers] == [[["device_lost", "GPU-b"]], [], []]
    assert answers[-1]["devices"][0]["temperature_celsius"] == 60
    assert answers[-1]["devices"][1] == {
        "device": "GPU-b",
        "index": 1,
        "vendor": "nvidia",
        "model": "NVIDIA GeForce GTX 1070 Ti",
        "driver": "570.1",
        "state": "lost",
    }
    rig.cards[1] = whole
    assert rig.tick()["events"] == [["device_returned", "GPU-b"]]


@pytest.mark.parametrize("code", [UNKNOWN, INVALID, "!28", "!16"])
def test_nothing_but_vague_errors_is_lost(start: Start, code: str) -> None:
    rig = start(card("GPU-a"), card("GPU-b"))
    rig.tick()
    rig.cards[0] = {"uuid": "GPU-a", "*": code}
    assert rig.states() == ["lost", "ok"]
    rig.cards[0] = card("GPU-a")
    answer = rig.tick()
    assert answer["devices"][0]["state"] == "ok"
    assert answer["devices"][0]["power_watts"] == 180.25  # no field was given up on its account


def test_one_unknown_error_among_values_is_null_and_asked_again(start: Start) -> None:
    rig = start(card("GPU-a", power=UNKNOWN))
    (device,) = rig.tick()["devices"]
    assert (device["state"], device["power_watts"]) == ("ok", None)
    rig.cards[0]["power"] = 90_000
    assert rig.tick()["devices"][0]["power_watts"] == 90.0


def test_a_call_that_sleeps_for_an_hour_costs_its_own_card_only(start: Start) -> None:
    # tt-smi#85, NVSentinel's probe watchdog: one event, and the healthy card keeps its cadence.
    rig = start(card("GPU-a", power="sleep"), card("GPU-b"), interval_seconds=2.5)
    answers = [rig.tick() for _ in range(4)]
    for answer in answers:
        assert [d["state"] for d in answer["devices"]] == ["unresponsive", "ok"]
        assert answer["devices"][1]["power_watts"] == 180.25
        assert answer["reads"] == {"data": answers.index(answer) + 1}
    assert [a["events"] for a in answers] == [[["device_unresponsive", "GPU-a"]], [], [], []]
    assert [a["notices"] for a in answers] == [[]] * 4


def test_a_driver_that_hangs_as_a_whole_is_late_and_said_once(start: Start) -> None:
    rig = start(card("GPU-a"), interval_seconds=2.5)
    rig.top["init"] = "sleep"
    answers = [rig.tick() for _ in range(3)]
    assert [len(a["notices"]) for a in answers] == [1, 0, 0]
    assert "the NVIDIA driver: no answer for" in answers[0]["notices"][0]
    assert answers[-1]["reads"] == {"late": 3}


def test_a_card_keeps_its_identity_when_the_indices_move(start: Start) -> None:
    rig = start(*(card(f"GPU-{name}", temperature=40 + i) for i, name in enumerate("abc")))
    rig.tick()
    del rig.cards[0]
    answer = rig.tick()
    assert [(d["device"], d["index"], d["state"]) for d in answer["devices"]] == [
        ("GPU-b", 0, "ok"),
        ("GPU-c", 1, "ok"),
        ("GPU-a", 0, "lost"),
    ]
    assert [d.get("temperature_celsius") for d in answer["devices"]] == [41, 42, None]
    assert answer["events"] == [["device_lost", "GPU-a"]]
    assert answer["devices"][0]["temperature_rate_celsius_per_second"] == 0


def test_a_card_that_is_counted_but_cannot_be_opened_is_the_one_that_is_missing(
    start: Start,
) -> None:
    rig = start(card("GPU-a"), card("GPU-b"), card("GPU-c"))
    rig.tick()
    rig.cards = [card("GPU-a"), {"handle": LOST, "uuid": LOST}]
    answer = rig.tick()
    assert [(d["device"], d["state"]) for d in answer["devices"]] == [
        ("GPU-a", "ok"),
        ("GPU-b", "lost"),
        ("GPU-c", "lost"),
    ]


def test_a_card_that_was_lost_before_it_was_seen_has_its_place_for_a_name(start: Start) -> None:
    rig = start(card("GPU-a"), {"uuid": "GPU-b", "handle": UNKNOWN})
    assert [(d["device"], d["state"]) for d in rig.tick()["devices"]] == [
        ("GPU-a", "ok"),
        ("nvidia-1", "lost"),
    ]


def test_a_lost_card_is_looked_for_once_a_minute(start: Start) -> None:
    rig = start(card("GPU-a"), card("GPU-b", handle=LOST))
    assert rig.states() == ["ok", "lost"]
    rig.cards[1] = card("GPU-b")
    assert [d["device"] for d in rig.tick()["devices"]] == ["GPU-a", "nvidia-1"]
    assert "GPU-b" in [d["device"] for d in rig.tick(seconds=120)["devices"]]


def test_a_missing_library_is_said_once(library: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with nvml_rig.running(empty, tmp_path, []) as rig:
        answers = [rig.tick() for _ in range(3)]
    if answers[0]["reads"] == {"data": 1}:
        pytest.skip("this machine has the real library")
    assert [len(a["notices"]) for a in answers] == [1, 0, 0]
    assert answers[-1]["reads"] == {"not here": 3}


def test_a_driver_that_is_unloaded_and_comes_back(start: Start) -> None:
    rig = start(card("GPU-a", fan=NOT_SUPPORTED))
    assert rig.states() == ["ok"]
    rig.top["init"] = 9  # driver not loaded
    answers = [rig.tick() for _ in range(3)]
    assert [[d["state"] for d in a["devices"]] for a in answers] == [["unknown"]] * 3
    assert [len(a["notices"]) for a in answers] == [1, 0, 0]
    assert "is the kernel module nvidia loaded?" in answers[0]["notices"][0]
    rig.top.clear()
    rig.cards[0]["fan"] = 30
    back = rig.tick()
    assert back["notices"] == ["source nvml gives data again"]
    assert back["events"] == []
    assert back["devices"][0]["fan_duty_ratio"] == 0.3  # another driver may support more


def test_a_driver_update_under_a_running_agent_loads_the_new_library(start: Start) -> None:
    rig = start(card("GPU-a"))
    assert rig.states() == ["ok"]
    rig.driver = "580.2"  # the library in memory is that of 570.1
    first = rig.tick()
    assert [d["state"] for d in first["devices"]] == ["unknown"]
    assert "a driver update waits for its module" in first["notices"][0]
    second = rig.tick()
    assert [(d["state"], d["driver"]) for d in second["devices"]] == [("ok", "580.2")]


def test_sentinels_and_impossible_values_are_null_and_counted(start: Start) -> None:
    # dcgm-exporter's README, tt-metal#30055: sentinels are no data.
    rig = start(
        card(
            "GPU-a",
            temperature=255,
            power=0,
            memory=0xFFFFFFFF,
            utilization=0xFFFFFFFF,
            ecc_corrected=0x7FFFFFFFFFFFFFF2,
            ecc_uncorrected=0xFFFFFFFF,
            replay=0xFFFFFFFF,
            width=0,
        ),
        card("GPU-b", temperature=0),
    )
    first, second = rig.tick(), rig.tick()
    bad, other = second["devices"]
    for name in (
        "temperature_celsius", "temperature_rate_celsius_per_second", "power_watts",
        "memory_temperature_celsius", "utilization_ratio", "ecc_corrected_total",
        "ecc_uncorrected_total", "pcie_link_width",
    ):  # fmt: skip
        assert bad[name] is None, name
    assert other["temperature_celsius"] is None
    assert "pcie_replay_total" not in second["details"].get("GPU-a", {})
    assert {tuple(row) for row in second["nulled"]} == {
        ("nvml", "temperature_celsius", "out of range", 2),
        ("nvml", "temperature_celsius", "sentinel", 2),
        ("nvml", "power_watts", "sentinel", 2),
        ("nvml", "memory_temperature_celsius", "sentinel", 2),
        ("nvml", "utilization_ratio", "out of range", 2),
        ("nvml", "ecc_corrected_total", "sentinel", 2),
        ("nvml", "ecc_uncorrected_total", "sentinel", 2),
        ("nvml", "pcie_link_width", "sentinel", 2),
        ("nvml", "pcie_replay_total", "sentinel", 2),
    }
    assert len(first["notices"]) == 9
    assert second["notices"] == []
    assert second["events"] == []


def test_ecc_that_falls_with_a_driver_reload_is_no_event(start: Start) -> None:
    # wandb PR#9347: volatile counters begin again.
    rig = start(card("GPU-a", ecc_uncorrected=5))
    events = []
    for count in (5, 5, 0, 1):
        rig.cards[0]["ecc_uncorrected"] = count
        events.append(rig.tick()["events"])
    assert events == [[], [], [], [["ecc_uncorrected", "GPU-a"]]]


def test_the_replay_counter_goes_on_past_its_32_bits(start: Start) -> None:
    # dcgm-exporter#417: +16 over the wrap; 57 → 21 is a reset.
    rig = start(card("GPU-a"))
    totals = []
    for raw in (4_294_967_280, 4_294_967_290, 10, 57, 21):
        rig.cards[0]["replay"] = raw
        totals.append(rig.tick()["details"]["GPU-a"]["pcie_replay_total"])
    assert totals == [4_294_967_280, 4_294_967_290, 4_294_967_306, 4_294_967_353, 21]


def test_proxies_say_that_they_are(start: Start) -> None:
    rig = start(card("GPU-a", rpm=2000, fan=50, samples=" ".join(["180000", "186000"] * 8)))
    for i in range(10):
        rig.cards[0]["rpm"] = 2000 + 20 * (i % 2)
        (device,) = rig.tick()["devices"]
    assert device["methods"] == {
        "vrm_ripple_volts": "power-sample-spread",
        "fan_vibration_g": "fan-rpm-jitter",
    }
    # 6 W steps: 2√2 · 1.4826 · 6/√2 W / 12 V · 10 mΩ; 20 rpm steps at 2010 rpm and 1 mm.
    assert device["vrm_ripple_volts"] == pytest.approx(0.014826)
    assert device["fan_vibration_g"] == pytest.approx(0.0636, rel=0.01)


def test_no_power_samples_no_proxy(start: Start) -> None:
    rig = start(card("GPU-a", samples="!6"))  # none yet
    assert rig.tick()["devices"][0]["vrm_ripple_volts"] is None
    rig.cards[0]["samples"] = " ".join(["0"] * 20)
    (device,) = rig.tick()["devices"]
    assert device["vrm_ripple_volts"] is None
    assert "methods" not in device


def test_nvml_takes_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--input goes with nvidia_smi"):
        open_source("nvml", AgentSettings(input=tmp_path))
