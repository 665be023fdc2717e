"""One command from history to a registered version, judged on rigs that it never learned from."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from contract.errors import ConfigError
from contract.minute import COLUMN_INDEX, COLUMNS
from models.dataset import Fleet
from models.holdout import hold_out
from models.registry import Registry
from rigcanary.cli import run

pytestmark = pytest.mark.timeout(900)
MINUTES = 500


def data_set(folder: Path, cards: int) -> Path:
    """Minute rows; every third card's ripple rises for eighty minutes and it fails."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    frames, failed = [], ["device,failed_at,kind"]
    for card in range(cards):
        last = MINUTES - int(rng.integers(0, 60))
        minute = np.arange(last)
        rows = np.zeros((last, len(COLUMNS)), np.float32)
        rows[:, COLUMN_INDEX["samples"]] = rows[:, COLUMN_INDEX["samples_ok"]] = 12
        ripple = rng.uniform(0.02, 0.05) * np.exp(0.05 * rng.standard_normal(last))
        if card % 3 == 0:
            ripple *= 1 + 3 * np.clip((minute - last + 80) / 80, 0, 1)
            failed.append(f"c{card},{1_767_225_600 + 60 * last + 5},vrm_capacitor")
        for name, value in (
            ("vrm_ripple_volts", ripple),
            ("power_watts", 200 + 20 * rng.standard_normal(last)),
            ("temperature_celsius", 60 + rng.standard_normal(last)),
        ):
            for statistic in ("mean", "min", "max"):
                rows[:, COLUMN_INDEX[f"{name}_{statistic}"]] = value
            rows[:, COLUMN_INDEX[f"{name}_count"]] = 12
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame.insert(0, "minute", pd.to_datetime(1_767_225_600 + 60 * minute, unit="s", utc=True))
        frame.insert(1, "site", "lab")
        frame.insert(2, "node", f"rig{card}")
        frame.insert(3, "device", f"c{card}")
        frames.append(frame)
    pd.concat(frames).to_parquet(folder / "minutes.parquet", row_group_size=1000)
    (folder / "failures.csv").write_text("\n".join(failed) + "\n")
    return folder


def devices(folder: Path) -> dict[str, int]:
    with Fleet(folder) as fleet:
        return {d.device: len(d.minute_M) for d in fleet.devices()}


def test_the_same_rigs_are_kept_whatever_comes_to_the_set(tmp_path: Path) -> None:
    small = hold_out(data_set(tmp_path / "a", 12), tmp_path / "pa")
    large = hold_out(data_set(tmp_path / "b", 30), tmp_path / "pb")
    learn, judge = devices(small.learn), devices(small.judge)
    assert not learn.keys() & judge.keys()
    assert len(learn) + len(judge) == 12
    assert {d for d in devices(large.judge) if int(d[1:]) < 12} == judge.keys()
    for part, own in ((small.learn, learn), (small.judge, judge)):
        labels = pd.read_csv(part / "failures.csv")["device"]
        assert set(labels) == {d for d in own if int(d[1:]) % 3 == 0}
        assert not labels.duplicated().any()


def test_too_few_cards_to_keep_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--judge DATASET"):
        hold_out(data_set(tmp_path / "a", 1), tmp_path / "pa")
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"no minutes\.parquet"):
        hold_out(tmp_path / "none", tmp_path / "pn")


def test_retrain_registers_a_challenger_and_says_what_it_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = data_set(tmp_path / "set", 30)
    registry = tmp_path / "registry"
    code = run(
        ["retrain", "--dataset", str(fleet), "--registry", str(registry), "--epochs", "2",
         "--windows", "1500", "--base", "none", "--by", "cron", "--json"]
    )  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    store = Registry(registry)
    assert store.state.challenger == result["version"]
    assert store.state.champion is None
    assert store.state.history[-1]["by"] == "cron"
    evaluation = store.evaluation(result["version"])
    assert evaluation is not None
    assert evaluation["devices"] == result["judged_devices"] < 12
    card = json.loads((registry / "versions" / result["version"] / "card.json").read_text())
    assert card["split"]["by"] == "3 folds of devices"
    assert card["base"] is None


def test_retrain_needs_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", "--registry", str(tmp_path)]) == 2
    assert "needs one of --state DIR" in capsys.readouterr().err
    code = run(["retrain", "--registry", str(tmp_path), "--state", str(tmp_path / "no")])
    assert code == 2
    assert "no history there" in capsys.readouterr().err
