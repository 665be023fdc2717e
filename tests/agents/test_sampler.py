"""The sampler: merging, the three outcomes of a read, states and the events they make."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import once
from agents.messages import Envelope, encode, new_boot_id
from agents.sampler import Sampler, Tick
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NoSample, NotHere, ReadFailed, ReadLate
from contract.message import check_event, check_telemetry, loads
from contract.signals import SIGNAL_NAMES

RECEIVED_MS = 1_800_000_000_000


class Scripted:
    """A source that gives, or raises, one entry of its script a read."""

    def __init__(self, *script: Any, name: str = "scripted", enumerates: bool = True) -> None:
        self.name, self.enumerates = name, enumerates
        self._script = list(script)
        self.closed = False

    def read(self, now: Instant) -> list[DeviceReading]:
        outcome = self._script.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return [dict(reading) for reading in outcome]

    def close(self) -> None:
        self.closed = True


def card(name: str = "GPU-a", **sensors: Any) -> DeviceReading:
    return {"device": name, "index": 0, "vendor": "nvidia", "model": "X", **sensors}


def run(*sources: Scripted, ticks: int, interval: float = 5.0) -> tuple[Sampler, list[Tick]]:
    sampler = Sampler(Envelope("lab", "rig1", "boot"), sources, interval)
    out = []
    for i in range(ticks):
        out.append(sampler.tick(Instant(1_767_225_600.0 + i * interval, 77.0 + i * interval)))
        if out[-1].telemetry is not None:
            check_telemetry(loads(encode(out[-1].telemetry)), RECEIVED_MS)
        for event in out[-1].events:
            check_event(loads(encode(event)), RECEIVED_MS)
    return sampler, out


def devices(tick: Tick) -> list[dict[str, Any]]:
    assert tick.telemetry is not None
    found: list[dict[str, Any]] = tick.telemetry["devices"]
    return found


def events(ticks: list[Tick]) -> list[tuple[int, str, str]]:
    return [(i, e["device"], e["type"]) for i, tick in enumerate(ticks) for e in tick.events]


def test_every_sensor_of_the_vocabulary_is_there_or_null() -> None:
    _, (tick,) = run(Scripted([card(temperature_celsius=60.0)]), ticks=1)
    (device,) = devices(tick)
    assert set(SIGNAL_NAMES) <= set(device)
    assert device["temperature_celsius"] == 60.0
    assert device["fan_speed_rpm"] is None
    assert device["state"] == "ok"


def test_rate_per_device_and_none_after_it_was_lost() -> None:
    hot = [
        [card(temperature_celsius=60.0 + i), card("GPU-b", temperature_celsius=50.0)]
        for i in range(2)
    ]
    gone = [[card(state="lost"), card("GPU-b", temperature_celsius=50.0)]] * 3
    back = [[card(temperature_celsius=40.0), card("GPU-b", temperature_celsius=50.0)]]
    _, ticks = run(Scripted(*hot, *gone, *back), ticks=6)
    rates = [[d.get("temperature_rate_celsius_per_second") for d in devices(t)] for t in ticks]
    assert rates == [[None, None], [0.2, 0.0], [None, 0.0], [None, 0.0], [None, 0.0], [None, 0.0]]
    assert events(ticks) == [(2, "GPU-a", "device_lost"), (5, "GPU-a", "device_returned")]


def test_a_lost_device_keeps_its_identity_and_the_others_flow_on() -> None:
    _, ticks = run(Scripted([card(), card("GPU-b")], [card("GPU-b")], [card("GPU-b")]), ticks=3)
    assert devices(ticks[2]) == [
        {**devices(ticks[0])[1]},
        {"device": "GPU-a", "index": 0, "vendor": "nvidia", "model": "X", "state": "lost"},
    ]
    assert events(ticks) == [(1, "GPU-a", "device_lost")]


def test_a_broken_observer_makes_devices_unknown_never_lost() -> None:
    script = [[card()], NotHere("no library"), NotHere("no library"), ReadFailed("busy"), [card()]]
    sampler, ticks = run(Scripted(*script), ticks=5)
    assert [devices(t)[0]["state"] for t in ticks] == ["ok", *["unknown"] * 3, "ok"]
    assert events(ticks) == []
    assert [len(t.notices) for t in ticks] == [0, 1, 0, 1, 1]  # each said once
    assert sampler.reads == {
        ("scripted", "data"): 2,
        ("scripted", "not here"): 2,
        ("scripted", "failed"): 1,
    }


def test_a_source_that_does_not_enumerate_loses_nothing() -> None:
    _, ticks = run(Scripted([card()], [], [card()], enumerates=False), ticks=3)
    assert [len(devices(t)) for t in ticks] == [1, 0, 1]
    assert events(ticks) == []


def test_nothing_is_sent_where_the_rig_took_no_sample() -> None:
    _, ticks = run(Scripted([card()], NoSample("gap"), [card()]), ticks=3)
    assert [t.telemetry is None for t in ticks] == [False, True, False]
    assert [t.telemetry["seq"] for t in ticks if t.telemetry] == [0, 1]


def test_two_sources_of_one_device_are_merged_and_the_first_counts() -> None:
    nvml = Scripted([card(temperature_celsius=60.0, vrm_ripple_volts=None)])
    adc = Scripted(
        [
            card(
                temperature_celsius=1.0,
                vrm_ripple_volts=0.05,
                methods={"vrm_ripple_volts": "power-sample-spread"},
            )
        ],
        name="adc",
    )
    _, (tick,) = run(nvml, adc, ticks=1)
    (device,) = devices(tick)
    assert device["temperature_celsius"] == 60.0
    assert device["vrm_ripple_volts"] == 0.05
    assert device["methods"] == {"vrm_ripple_volts": "power-sample-spread"}


@pytest.mark.parametrize("sensor_first", [True, False])
def test_a_sensor_counts_before_what_stands_in_for_it(sensor_first: bool) -> None:
    proxy = card(vrm_ripple_volts=0.5, methods={"vrm_ripple_volts": "power-sample-spread"})
    readings = [card(vrm_ripple_volts=0.05), proxy]
    sources = [Scripted([r], name=f"s{i}") for i, r in enumerate(readings)]
    _, (tick,) = run(*(sources if sensor_first else sources[::-1]), ticks=1)
    (device,) = devices(tick)
    assert device["vrm_ripple_volts"] == 0.05
    assert "methods" not in device


def test_of_two_proxies_the_first_counts_with_its_own_method() -> None:
    sources = [
        Scripted([card(fan_vibration_g=g, methods={"fan_vibration_g": m})], name=m)
        for g, m in ((0.1, "a"), (0.2, "b"))
    ]
    _, (tick,) = run(*sources, ticks=1)
    assert devices(tick)[0]["fan_vibration_g"] == 0.1
    assert devices(tick)[0]["methods"] == {"fan_vibration_g": "a"}


def test_who_could_look_knows_better_than_who_could_not() -> None:
    broken = Scripted([card(temperature_celsius=50.0)], ReadFailed("x"))
    other = Scripted([card(state="ok")], [card(state="ok")], name="other")
    _, ticks = run(broken, other, ticks=2)
    assert [devices(tick)[0]["state"] for tick in ticks] == ["ok", "ok"]


def test_impossible_values_are_null_counted_and_said_once() -> None:
    # tt-metal#30055: a hung board shows 65536 °C, 4294967295 rpm; no spike of dT/dt comes of it.
    good = card(temperature_celsius=60.0, fan_speed_rpm=1000)
    bad = card(
        temperature_celsius=65536.0,
        fan_speed_rpm=4294967295,
        power_watts="N/A",
        nulled={"ambient_celsius": "sentinel"},
        details={"pcie_replay_total": 0xFFFFFFFF, "sm_clock_hertz": 1e9},
    )
    sampler, ticks = run(Scripted([good], [bad], [bad], [good]), ticks=4)
    (device,) = devices(ticks[2])
    assert device["state"] == "ok"
    for name in ("temperature_celsius", "fan_speed_rpm", "power_watts", "ambient_celsius"):
        assert device[name] is None
    assert dict(sampler.nulled) == {
        ("scripted", "temperature_celsius", "out of range"): 2,
        ("scripted", "fan_speed_rpm", "sentinel"): 2,
        ("scripted", "power_watts", "not a number"): 2,
        ("scripted", "ambient_celsius", "sentinel"): 2,
        ("scripted", "pcie_replay_total", "sentinel"): 2,
    }
    assert [len(tick.notices) for tick in ticks] == [0, 5, 0, 0]
    assert "temperature_celsius of GPU-a is no measurement (out of range, 65536.0)" in (
        " ".join(ticks[1].notices)
    )
    rates = [devices(tick)[0]["temperature_rate_celsius_per_second"] for tick in ticks]
    assert rates == [None, None, None, 0.0]


def test_details_stay_in_the_agent() -> None:
    one = Scripted([card(details={"a": 1.0, "b": 2.0})])
    two = Scripted([card(details={"a": 9.0, "c": None})], name="two")
    sampler, (tick,) = run(one, two, ticks=1)
    assert sampler.details == {"GPU-a": {"a": 1.0, "b": 2.0}}
    assert "details" not in devices(tick)[0]


def test_each_read_is_timed_even_one_that_fails() -> None:
    clock = itertools.count()
    sampler = Sampler(
        Envelope("lab", "rig1", "boot"),
        [Scripted([card()]), Scripted(ReadFailed("x"), name="b")],
        5.0,
        lambda: float(next(clock)),
    )
    sampler.tick(Instant(1_767_225_600.0, 0.0))
    assert sampler.read_seconds == {"scripted": 1.0, "b": 1.0}


def test_a_late_source_is_said_once_however_late_it_is() -> None:
    script = [[card()], ReadLate("no answer for 2.0 s"), ReadLate("no answer for 7.0 s"), [card()]]
    sampler, ticks = run(Scripted(*script), ticks=4)
    assert [devices(t)[0]["state"] for t in ticks] == ["ok", "unresponsive", "unresponsive", "ok"]
    assert [len(t.notices) for t in ticks] == [0, 1, 0, 1]
    assert [type_ for _, _, type_ in events(ticks)] == ["device_unresponsive", "device_returned"]
    assert sampler.late == 2


def test_once_asks_a_late_driver_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted(ReadLate("starting"), ReadLate("starting"), [card()])
    monkeypatch.setattr(
        once, "make_sampler", lambda settings, envelope: Sampler(envelope, [source], 5.0)
    )
    monkeypatch.setattr("agents.once.time.sleep", lambda seconds: None)
    message, _ = once.once(AgentSettings(site="lab", node="rig1"))
    assert [device["state"] for device in message["devices"]] == ["ok"]
    assert source.closed


def test_one_source_failing_leaves_the_other() -> None:
    _, (tick,) = run(Scripted(ReadFailed("x")), Scripted([card()], name="b"), ticks=1)
    assert len(devices(tick)) == 1


def test_ecc_events_come_with_a_rise_and_not_with_a_reset() -> None:
    counts = [5, 5, 0, 1, None, 3]
    _, ticks = run(Scripted(*([card(ecc_uncorrected_total=n)] for n in counts)), ticks=6)
    assert events(ticks) == [(3, "GPU-a", "ecc_uncorrected"), (5, "GPU-a", "ecc_uncorrected")]
    assert ticks[5].events[0]["message"].startswith("2 more")


def test_pcie_width_event_once_an_episode() -> None:
    widths = [16, 8, 8, None, 8, 16, 8]
    script = ([card(pcie_link_width=w, pcie_link_width_max=16)] for w in widths)
    _, ticks = run(Scripted(*script), ticks=7)
    assert events(ticks) == [(1, "GPU-a", "pcie_width_low"), (6, "GPU-a", "pcie_width_low")]


@given(st.lists(st.sampled_from(["ok", "lost", "unresponsive", "unknown"]), max_size=30))
def test_one_event_a_change_of_state(states: list[str]) -> None:
    _, ticks = run(Scripted(*([card(state=s)] for s in states)), ticks=len(states))
    known = ["ok", *(s for s in states if s != "unknown")]
    names = {"ok": "device_returned", "lost": "device_lost", "unresponsive": "device_unresponsive"}
    expected = [names[b] for a, b in itertools.pairwise(known) if a != b]
    assert [type_ for _, _, type_ in events(ticks)] == expected


def test_each_run_is_a_new_boot_and_seq_rises_by_one() -> None:
    assert len({new_boot_id() for _ in range(100)}) == 100
    _, ticks = run(Scripted(*[[card(state="lost")]] * 3), ticks=3)
    assert [t.telemetry["seq"] for t in ticks if t.telemetry] == [0, 1, 2]


@pytest.fixture
def nan_reading() -> Callable[[], DeviceReading]:
    return lambda: card(temperature_celsius=float("nan"), ecc_uncorrected_total=float("nan"))


def test_nan_goes_out_as_null(nan_reading: Callable[[], DeviceReading]) -> None:
    _, (tick,) = run(Scripted([nan_reading()]), ticks=1)
    assert tick.telemetry is not None
    (device,) = loads(encode(tick.telemetry))["devices"]
    assert device["temperature_celsius"] is None
    assert device["temperature_rate_celsius_per_second"] is None
