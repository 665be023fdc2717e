"""The registry: what promotion refuses, what roll-back gives back, what a reader sees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.errors import ConfigError, RigcanaryError
from models.card import DEFAULT, read_model, version_of, write_model
from models.registry import Registry, defeats, recall_within
from rigcanary.cli import run

AT, BY = "2026-12-01T00:00:00Z", "operator"


def curve(recall: float) -> list[dict[str, float]]:
    return [
        {"false_alarms_per_device_day": 0.0, "event_recall": recall / 2, "threshold": 0.9},
        {"false_alarms_per_device_day": 0.003, "event_recall": recall, "threshold": 0.7},
        {"false_alarms_per_device_day": 0.5, "event_recall": 1.0, "threshold": 0.1},
    ]


def model(folder: Path, shift: float, recall: float, baseline_recall: float = 0.5) -> str:
    """A copy of the default model with other weights and the curves asked for."""
    default = read_model(DEFAULT)
    weights = {name: value + np.float32(shift) for name, value in default.weights.items()}
    card: dict[str, Any] = json.loads(json.dumps(default.card))
    card["version"] = version_of(weights, default.baselines)
    for name, policy in card["policies"].items():
        better = recall if name == "ensemble" else baseline_recall
        policy["validation_curve"] = curve(better)
    write_model(folder, card, weights, default.baselines)
    return str(card["version"])


def test_recall_counts_only_points_within_the_budget() -> None:
    assert recall_within(curve(0.6), 0.033) == 0.6
    assert recall_within(curve(0.6), 0.001) == 0.3
    assert recall_within([], 0.033) == 0.0


def test_a_model_that_a_baseline_beats_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    model(tmp_path / "m", 0.0, recall=0.4)
    version = registry.register(tmp_path / "m", AT, BY)
    before = registry.state

    with pytest.raises(RigcanaryError, match=r"logistic_regression catches 0\.50"):
        registry.promote(version, AT, BY)

    assert registry.state == before
    assert before.champion is None
    assert before.challenger == version


def test_an_override_promotes_and_is_recorded_with_what_it_passed_over(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    model(tmp_path / "m", 0.0, recall=0.4)
    version = registry.register(tmp_path / "m", AT, BY)

    lost = registry.promote(version, AT, BY, override="no trees in the worker yet")

    entry = registry.state.history[-1]
    assert registry.state.champion == version
    assert entry["override"] == "no trees in the worker yet"
    assert entry["beaten_by"] == [str(defeat) for defeat in lost]
    assert entry["by"] == BY


def test_an_evaluation_on_another_set_outweighs_the_card(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    version = model(tmp_path / "m", 0.0, recall=0.9)
    evaluation = {
        "model_version": version,
        "policies": [
            {"name": "ensemble", "curve": curve(0.2)},
            {"name": "telemetry_missing", "curve": curve(0.3)},
        ],
    }
    registry.register(tmp_path / "m", AT, BY, evaluation)

    assert defeats(read_model(tmp_path / "m").card) == []
    with pytest.raises(RigcanaryError, match="telemetry_missing"):
        registry.promote(version, AT, BY)


def test_an_evaluation_of_another_model_is_refused(tmp_path: Path) -> None:
    model(tmp_path / "m", 0.0, recall=0.9)
    with pytest.raises(ConfigError, match="the evaluation is of other"):
        Registry(tmp_path / "r").register(tmp_path / "m", AT, BY, {"model_version": "other"})


def test_a_version_of_other_features_is_listed_and_not_promoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry(tmp_path / "registry")
    model(tmp_path / "m", 0.0, recall=0.9)
    version = registry.register(tmp_path / "m", AT, BY)
    card = tmp_path / "registry" / "versions" / version / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"features_version": "older"}))

    assert run(["models", "list", "--registry", str(registry.folder)]) == 0
    assert version in capsys.readouterr().out
    with pytest.raises(ConfigError, match="train it again"):
        registry.promote(version, AT, BY)
    assert registry.state.champion is None


def test_roll_back_goes_back_one_promotion_at_a_time(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    versions = []
    for i in range(3):
        model(tmp_path / f"m{i}", i * 0.01, recall=0.9)
        versions.append(registry.register(tmp_path / f"m{i}", AT, BY))
        registry.promote(versions[-1], AT, BY)

    assert registry.roll_back(AT, BY, "worse at night") == versions[1]
    assert registry.roll_back(AT, BY) == versions[0]
    with pytest.raises(RigcanaryError, match="no champion to go back to"):
        registry.roll_back(AT, BY)
    assert registry.state.champion == versions[0]


def test_a_registry_is_read_as_its_champion(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    model(tmp_path / "m", 0.0, recall=0.9)
    version = registry.register(tmp_path / "m", AT, BY)
    with pytest.raises(ConfigError, match="has no champion"):
        read_model(registry.folder)

    registry.promote(version, AT, BY)

    assert read_model(registry.folder).version == version


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    default = read_model(DEFAULT)
    name = next(iter(default.weights))
    weights = {**default.weights, name: np.full_like(default.weights[name], np.nan)}

    with pytest.raises(RigcanaryError, match="not finite"):
        write_model(tmp_path / "m", default.card, weights, default.baselines)

    assert not (tmp_path / "m").exists()


def test_the_command_line_refuses_then_overrides_then_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = model(tmp_path / "m", 0.0, recall=0.4)
    where = ["--registry", str(tmp_path / "registry")]

    assert run(["models", "register", str(tmp_path / "m"), *where]) == 0
    assert run(["models", "promote", version, *where]) == 1
    assert "--override REASON" in capsys.readouterr().err
    assert run(["models", "promote", version, "--override", "a trial", *where]) == 0
    capsys.readouterr()
    assert run(["models", "list", "--json", *where]) == 0

    listed = json.loads(capsys.readouterr().out)
    assert listed["versions"][0]["role"] == "champion"
    assert [e["action"] for e in listed["history"]] == ["register", "promote"]
    assert run(["models", "promote", "nonsense", *where]) == 2
    assert run(["models", "rollback", *where]) == 1
