"""``rigcanary train`` and ``evaluate`` as a user meets them, where no model is needed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rigcanary", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "nowhere", "--model", "nomodel"), "model 'nomodel'"),
        (("train", "nowhere", "--out", "m"), "data set nowhere: no such folder"),
        (("train", "nowhere", "--out", "m", "--split", "luck"), "--split luck"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_help_has_an_example(name):
    result = run(name, "--help")
    assert result.returncode == 0
    assert f"Example: rigcanary {name}" in result.stdout
