"""``/metrics`` of the agent: what is shown, and what vanishes."""

import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents import run
from agents.edge.device_view import FORGET_SECONDS
from agents.edge.metrics import AgentMetrics, SamplerCounts, sampler_counts
from agents.edge.outbox import Outbox
from agents.edge.publisher import Publisher
from agents.edge.service import Agent
from agents.messages import Envelope
from agents.sampler import Sampler
from agents.schedule import Schedule
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, ReadFailed
from contract.errors import ConfigError

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class FakeSource:
    name, enumerates = "fake", True

    def __init__(self) -> None:
        self.devices: list[DeviceReading] = []
        self.broken = False

    def read(self, now: Instant) -> list[DeviceReading]:
        if self.broken:
            raise ReadFailed("no answer")
        return [dict(device) for device in self.devices]

    def close(self) -> None:
        pass


class FakePublisher(Publisher):
    def __init__(self) -> None:
        self.dropped_memory, self.refused = 3, 0

    connected = True
    acknowledged = connections = takeovers = denied = 7

    def __len__(self) -> int:
        return 2


class Rig:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.wall = 1_767_225_600.0
        self.source = FakeSource()
        self.sampler = Sampler(Envelope("lab", "rig1", "0" * 32), [self.source], 5.0)
        self.outbox = Outbox(folder, 1 << 20, 3600.0, lambda: self.wall, lambda: self.now)
        self.metrics = AgentMetrics(
            "lab", "rig1", 5.0, self.sampler, Schedule(0.0, 5.0), FakePublisher(), self.outbox,
            lambda: self.wall, lambda: self.now,
        )  # fmt: skip

    def tick(self, seconds: float = 5.0) -> None:
        self.now += seconds
        self.wall += seconds
        self.metrics.ticked(self.sampler.tick(Instant(self.wall, self.now)))

    def scrape(self) -> Series:
        from prometheus_client import generate_latest

        return parse(generate_latest(self.metrics.registry).decode())


def parse(text: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(series: Series, name: str, **labels: str) -> list[float]:
    return [
        value
        for (found, pairs), value in series.items()
        if found == name and labels.items() <= dict(pairs).items()
    ]


def card(name: str, **more: Any) -> DeviceReading:
    return {"device": name, "index": 0, "model": "GTX", "temperature_celsius": 60.0, **more}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "outbox")


def test_a_removed_cards_series_vanish_within_one_scrape(rig: Rig) -> None:
    rig.source.devices = [card("GPU-a", ecc_corrected_total=4), card("GPU-b")]
    rig.tick()
    series = rig.scrape()
    assert of(series, "rigcanary_temperature_celsius") == [60.0, 60.0]
    assert of(series, "rigcanary_ecc_corrected_total", device="GPU-a") == [4.0]
    assert of(series, "rigcanary_ecc_corrected_total", device="GPU-b") == []
    assert of(series, "rigcanary_device_info", device="GPU-a", model="GTX") == [1.0]
    rig.source.devices = [card("GPU-a")]
    rig.tick()
    series = rig.scrape()
    assert of(series, "rigcanary_device_present", device="GPU-b") == [0.0]
    assert of(series, "rigcanary_device_state", device="GPU-b", state="lost") == [1.0]
    kept = {name for name, labels in series if ("device", "GPU-b") in labels}
    assert kept == {
        "rigcanary_device_present",
        "rigcanary_device_state",
        "rigcanary_device_last_sample_timestamp_seconds",
    }
    rig.tick(FORGET_SECONDS + 1)
    assert not [labels for _, labels in rig.scrape() if ("device", "GPU-b") in labels]
    rig.source.devices = [card("GPU-a"), card("GPU-b")]
    rig.tick()
    assert of(rig.scrape(), "rigcanary_device_present", device="GPU-b") == [1.0]


def test_every_series_of_a_card_has_the_labels_of_the_contract_and_no_more(rig: Rig) -> None:
    rig.source.devices = [card("GPU-a")]
    rig.tick()
    for name, pairs in rig.scrape():
        labels = dict(pairs)
        if "device" in labels:
            more = set(labels) - {"site", "node", "device"}
            allowed = {
                "rigcanary_device_state": {"state"},
                "rigcanary_device_info": {"index", "vendor", "model", "serial", "driver"},
            }
            assert more <= allowed.get(name, set()), name


def test_an_observer_that_fails_leaves_the_cards_present(rig: Rig) -> None:
    rig.source.devices = [card("GPU-a")]
    rig.tick()
    rig.source.broken = True
    rig.tick()
    series = rig.scrape()
    assert of(series, "rigcanary_device_present", device="GPU-a") == [1.0]
    assert of(series, "rigcanary_device_state", state="unknown") == [1.0]
    assert of(series, "rigcanary_temperature_celsius") == []
    assert of(series, "rigcanary_agent_reads_total", outcome="failed") == [1.0]


def test_values_of_a_sampler_that_hangs_are_not_shown_for_ever(rig: Rig) -> None:
    rig.source.devices = [card("GPU-a")]
    rig.tick()
    rig.now += 61
    series = rig.scrape()
    assert of(series, "rigcanary_temperature_celsius") == []
    assert of(series, "rigcanary_device_last_sample_timestamp_seconds") == [rig.wall]


def test_the_outbox_and_what_was_lost_are_shown(rig: Rig) -> None:
    rig.outbox.store("t", b"1")
    rig.now += 40
    series = rig.scrape()
    assert of(series, "rigcanary_agent_outbox_messages") == [1.0]
    assert of(series, "rigcanary_agent_outbox_oldest_seconds") == [40.0]
    assert of(series, "rigcanary_agent_messages_dropped_total", reason="memory") == [3.0]
    assert of(series, "rigcanary_agent_messages_dropped_total", reason="size") == [0.0]
    assert of(series, "rigcanary_agent_connected") == [1.0]
    rig.wall += 40 - 7.5
    (step,) = of(rig.scrape(), "rigcanary_agent_clock_step_seconds")
    assert step == pytest.approx(-7.5)


def test_what_the_sampler_counts_is_passed_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = SamplerCounts(
        {("nvml", "data"): 2}, Counter({("nvml", "power_watts", "range"): 5}), {"nvml": 0.02}
    )
    monkeypatch.setattr("agents.edge.metrics.sampler_counts", lambda _: counts)
    rig.tick()
    rig.tick()
    series = rig.scrape()
    nulled = of(series, "rigcanary_agent_values_nulled_total", sensor="power_watts")
    assert nulled == [5.0]
    assert of(series, "rigcanary_agent_read_seconds_count", source="nvml") == [2.0]
    assert of(series, "rigcanary_agent_read_seconds_bucket", le="0.01") == [0.0]
    assert of(series, "rigcanary_agent_read_seconds_bucket", le="0.025") == [2.0]
    assert of(series, "rigcanary_agent_read_seconds_sum") == [pytest.approx(0.04)]


def test_the_samplers_counters_have_the_names_that_are_read(rig: Rig) -> None:
    assert sampler_counts(rig.sampler).reads is rig.sampler.reads


def test_it_is_served_on_loopback_only_while_the_agent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Any
) -> None:
    source = FakeSource()
    source.devices = [card("GPU-a")]
    monkeypatch.setattr(run, "open_source", lambda name, settings: source)
    port = free_port()
    settings = AgentSettings(
        site="lab", node="rig1", sources=("fake",), state=tmp_path, metrics_port=port
    )
    agent = Agent(settings)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            series = parse(answer.read().decode())
        assert of(series, "rigcanary_build_info", process="agent") == [1.0]
        assert of(series, "rigcanary_agent_ticks_total") == [0.0]
        with pytest.raises(ConfigError, match=f"metrics_port {port}"):
            Agent(settings.model_copy(update={"state": tmp_path / "two"}))
    finally:
        assert agent._metrics is not None
        agent._metrics.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
