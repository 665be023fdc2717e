"""A promoted model serves without a restart; what cannot be loaded changes nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from contract.errors import ConfigError
from stream.edge.metrics import WorkerMetrics
from stream.edge.model_watch import ModelWatch
from stream.fleet_view import FleetView


class Versions(NamedTuple):
    champion: str | None
    challenger: str | None


class Model:
    def __init__(self, version: str) -> None:
        self.version = version

    def threshold(self, budget: float) -> float:
        return 0.5 + budget


class Registry:
    """What the file says next; loads are recorded."""

    def __init__(self, *states: Versions | None) -> None:
        self.states = list(states)
        self.loaded: list[str] = []
        self.broken: set[str] = set()

    def changed(self) -> Versions | None:
        return self.states.pop(0)

    def load(self, version: str) -> Any:
        if version in self.broken:
            raise ConfigError(f"{version} is of other features")
        self.loaded.append(version)
        return Model(version)


@pytest.fixture
def shared() -> Any:
    view = FleetView()
    return SimpleNamespace(
        predictor=Model("a"),
        challenger=None,
        decider=SimpleNamespace(threshold=0.9, model_version="a"),
        settings=SimpleNamespace(false_alarms_per_device_day=0.033),
        metrics=WorkerMetrics(view),
        view=view,
    )


def errors(shared: Any) -> float:
    return float(shared.metrics.registry.get_sample_value(
        "rigcanary_worker_errors_total", {"kind": "model"}) or 0)  # fmt: skip


def test_a_promoted_champion_serves_with_its_own_threshold(shared: Any) -> None:
    watch = ModelWatch(shared, Registry(Versions("a", "b"), None, Versions("b", None)))
    assert not asyncio.run(watch.look())
    assert (shared.predictor.version, shared.challenger.version) == ("a", "b")
    assert not asyncio.run(watch.look())
    assert asyncio.run(watch.look())
    assert shared.predictor.version == shared.decider.model_version == "b"
    assert shared.decider.threshold == pytest.approx(0.533)
    assert shared.challenger is None


def test_a_challenger_that_stays_is_not_loaded_again(shared: Any) -> None:
    registry = Registry(Versions("a", "b"), Versions("a", "b"))
    watch = ModelWatch(shared, registry)
    asyncio.run(watch.look())
    asyncio.run(watch.look())
    assert registry.loaded == ["b"]


def test_a_model_that_cannot_be_loaded_changes_nothing_and_is_said_once(
    shared: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(*[Versions("b", None)] * 2)
    registry.broken.add("b")
    watch = ModelWatch(shared, registry)
    assert not asyncio.run(watch.look())
    assert not asyncio.run(watch.look())
    assert shared.predictor.version == "a"
    assert errors(shared) == 2
    assert caplog.text.count("b is of other features") == 1
