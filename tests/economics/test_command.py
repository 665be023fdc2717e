"""``rigcanary economics`` as people call it."""

import json
from pathlib import Path

import pytest

from rigcanary.cli import run


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["economics", "--set", "recall=0.7", "--replications", "3"]) == 0
    out = capsys.readouterr().out
    assert "goodput, % of the time" in out
    assert "best checkpoint interval" in out


def test_numbers_from_a_file_an_evaluation_and_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.toml").write_text("cards = 40\nworld = 20\ndays = 90\n")
    point = {"threshold": 0.5, "event_recall": 0.6, "false_alarms_per_device_day": 0.01}
    policy = {
        "role": "served", "false_alarm_budget_per_device_day": 0.033, "curve": [point],
        "event_recall": 0.6, "false_alarms_per_device_day": 0.01,
    }  # fmt: skip
    (tmp_path / "e.json").write_text(json.dumps({"policies": [policy]}))
    code = run(
        ["economics", "--fleet", str(tmp_path / "fleet.toml"), "--replications", "2",
         "--evaluation", str(tmp_path / "e.json"), "--set", "days=30", "--json"]
    )  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    numbers = answer["numbers"]
    assert (numbers["cards"], numbers["days"], numbers["recall"]) == (40, 30, 0.6)
    assert answer["best_threshold"]["threshold"] == 0.5
    assert answer["with"]["goodput_ci95"][0] <= answer["with"]["goodput"]


@pytest.mark.parametrize(
    "arguments",
    [["--set", "recall"], ["--set", "recall=high"], ["--set", "colour=1"], ["--fleet", "nowhere"],
     ["--evaluation", "nowhere"]],
)  # fmt: skip
def test_what_is_wrong_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["economics", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
