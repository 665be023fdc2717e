"""The command line: exit codes, one line for an error, help with an example."""

import subprocess
import sys

import pytest

from rigcanary import cli


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rigcanary", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version_answers_a_program() -> None:
    done = run("version", "--json")
    assert done.returncode == 0
    assert '"version"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "No such command 'nope'"),
        (["version", "--nope"], "No such option: --nope"),
        (["worker", "--config", "/nowhere.toml"], "/nowhere.toml: cannot read it"),
        (["worker", "--profile", "neither"], "profile"),
        (["worker", "--model", "nope"], "nope/card.json is not there"),
        (["worker", "--kafka", "no-port"], "'no-port' is not HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_without_a_command_it_shows_them_all() -> None:
    done = run()
    assert all(name in done.stdout for name in cli.COMMANDS)


def test_a_missing_package_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What Python does when a module is not installed.
    monkeypatch.setitem(sys.modules, "faust", None)
    monkeypatch.delitem(sys.modules, "stream.edge.worker", raising=False)
    monkeypatch.delitem(sys.modules, "stream.edge.run", raising=False)
    assert cli.run(["worker", "--kafka", "127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'rigcanary[stream,models]'" in error
    assert "faust" in error
