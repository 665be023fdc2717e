"""Every subcommand of the contract explains itself."""

from importlib.util import find_spec

import pytest

from rigcanary.cli import COMMANDS, run

NEEDED = [
  "demo", "serve", "agent", "bridge", "worker", "runner", "simulate", "replay", "export", "failure",
  "train", "evaluate", "doctor", "version", "dead-letters", "deliveries",
]  # fmt: skip


def written(name: str) -> bool:
    return find_spec(f"rigcanary.commands.{name.replace('-', '_')}") is not None


def test_the_subcommands_of_the_contract_are_listed() -> None:
    assert set(NEEDED) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not written(name):
        pytest.skip("not written yet")

    assert run([name, "--help"]) == 0

    text = capsys.readouterr().out
    assert "Example" in text
    assert f"rigcanary {name}" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_one_line_and_exit_code_two(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not written(name):
        pytest.skip("not written yet")

    assert run([name, "--no-such-option"]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "--no-such-option" in lines[0]


def test_an_unknown_subcommand_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
