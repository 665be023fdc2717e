"""A policy as TOML: what a person changes is in force, what is wrong is named with its line."""

from pathlib import Path

import pytest

from contract.errors import ConfigError
from stream import policy_file
from stream.policy import Limits, Policy, RiskHysteresis


def read(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return policy_file.read(path)


def test_the_shipped_file_says_what_the_code_has_by_itself() -> None:
    shipped, plain = policy_file.read(), Policy()
    assert (shipped.limits, shipped.budget) == (Limits(), plain.budget)
    for name in ("raise_scorings", "of_scorings", "clear_ratio", "calm_minutes", "repeat_days"):
        assert getattr(shipped, name) == getattr(plain, name)
    assert shipped.serves_on_probation == plain.serves_on_probation
    assert shipped.limits_of("NVIDIA GeForce RTX 3090").temperature_celsius == 96.0
    assert shipped.limits_of("unheard of").temperature_celsius == 97.0


def test_a_model_has_its_own_limits_and_scorings_whatever_capitals(tmp_path: Path) -> None:
    text = '[limits]\nlost_samples = 4\n[models."My Card"]\n'
    text += "ripple_volts = 0.2\nraise_scorings = 3\n"
    policy = read(tmp_path, text)
    assert policy.limits_of("MY CARD").ripple_volts == 0.2
    assert policy.limits_of("my card").lost_samples == 4
    assert policy.limits_of("NVIDIA GeForce RTX 3090").lost_samples == 4
    assert RiskHysteresis.of(policy, model="my card").raise_scorings == 3
    assert RiskHysteresis.of(policy, model="other").raise_scorings == 2


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[decision]\n\nof_scorings = 0\n", 3, "of_scorings"),
        ("[decision]\nraise_scorings = 4\n", 2, "must not be over"),
        ("# x\n[budget]\nwindow_ratio = 1.5\n", 3, "from 0 to 1"),
        ("[budget]\nwindow_devices = 2.5\n", 2, "whole number"),
        ("[limits]\ntemperature_celsius = true\n", 2, "a number"),
        ('[models."A"]\n[models."B"]\nheat = 1\n', 3, "no such key"),
        ("[limit]\nx = 1\n", 1, "no such table"),
        ('[sites."lab"]\ndry_run = 1\n', 2, "dry_run"),
        ("[[silences]]\nfrom = 2026-01-01T00:00:00\n", 2, "offset"),
        ('[decision]\nserves_on_probation = ["luck"]\n', 2, "list of predicted"),
        ("[decision\n", 1, "not TOML"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert f"line {line}" in message
    assert words in message


def test_a_silence_covers_its_hours_and_its_cards(tmp_path: Path) -> None:
    text = (
        '[[silences]]\nnode = "rig0*"\nfrom = 2026-01-01T00:00:00Z\n'
        'until = 2026-01-01T01:00:00Z\nreason = "fans"\n'
    )
    policy = read(tmp_path, text)
    at = 1_767_225_600_000
    assert policy.silenced("lab", "rig01", "a", at)
    assert policy.silenced("lab", "rig01", None, at)
    assert policy.silenced("lab", "rig11", "a", at) is None
    assert policy.silenced("lab", "rig01", "a", at + 3_600_000) is None
