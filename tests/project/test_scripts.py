"""The newcomer's scripts: what they say on a bare machine, and when they install."""

import os
import re
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(p for p in (ROOT / "scripts").iterdir() if p.is_file())
UV_VERSION = re.findall(r"^uv_version=(\S+)$", (ROOT / "scripts/_setup").read_text(), re.M)[0]


def write_command(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + textwrap.dedent(body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with our scripts and a project that needs nothing."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (folder / "constraints.txt").write_text("")
    return folder


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder of commands as on a bare machine: coreutils and the like, no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "cksum", "cut", "dirname", "env", "flock", "id", "mv", "rm", "sh",
                 "sleep", "sort", "tr"):  # fmt: skip
        (folder / name).symlink_to(shutil.which(name) or "/nonexistent")
    return folder


def run(script: Path, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(script), *arguments],
        env={"PATH": str(path), "HOME": str(path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def fake_venv(checkout: Path) -> Path:
    """A .venv whose uv and pip write down how they are called. Returns that log."""
    log = checkout / "calls.log"
    bin_folder = checkout / ".venv" / "bin"
    write_command(
        bin_folder / "python",
        f"""
        case "$1 $2 $3" in
          "-m pip config") cat "{checkout}/pip-config" 2>/dev/null; exit 0 ;;
          "-m pip "*) echo "pip $3" >>"{log}"; [ ! -e "{checkout}/broken" ]; exit ;;
          "-m pytest "*) exit 0 ;;
        esac
        exec "{sys.executable}" "$@"
        """,
    )
    write_command(
        bin_folder / "uv",
        f"""
        if [ "$1" = --version ]; then echo "uv {UV_VERSION}"; exit; fi
        echo "uv start index=${{UV_DEFAULT_INDEX:-}}" >>"{log}"
        [ ! -e "{checkout}/broken" ] || exit 1
        sleep 0.3
        echo "uv end" >>"{log}"
        """,
    )
    return log


@pytest.mark.parametrize("name", ["demo", "test", "check"])
def test_without_python_one_line_names_the_command(
    checkout: Path, bare_path: Path, name: str
) -> None:
    result = run(checkout / "scripts" / name, bare_path)

    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()[1:]) <= 1
    assert "python3-venv" in result.stderr
    assert "Python 3.11" in result.stderr


def test_without_venv_module_one_line_names_the_command(checkout: Path, bare_path: Path) -> None:
    write_command(
        bare_path / "python3",
        f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n',
    )

    result = run(checkout / "scripts/demo", bare_path)

    assert result.returncode == 2
    assert "venv module is missing" in result.stderr
    assert "python3-venv" in result.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_too_new_is_told(checkout: Path, bare_path: Path) -> None:
    # Fails the range check (its upper bound is in it) and passes the one for newer.
    write_command(bare_path / "python3", 'case "$*" in *"<= (3, 13)"*) exit 1 ;; esac\nexit 0\n')

    result = run(checkout / "scripts/demo", bare_path)

    assert result.returncode == 2
    assert "python3.13-venv" in result.stderr


def test_installs_once_and_again_only_when_what_it_installs_changed(
    checkout: Path, bare_path: Path
) -> None:
    log = fake_venv(checkout)

    for _ in range(2):
        assert run(checkout / "scripts/test", bare_path).returncode == 0
    assert log.read_text().count("uv end") == 1

    (checkout / "constraints.txt").write_text("six==1.0\n")
    assert run(checkout / "scripts/test", bare_path).returncode == 0
    assert log.read_text().count("uv end") == 2


def test_two_at_once_install_once(checkout: Path, bare_path: Path) -> None:
    log = fake_venv(checkout)
    command = ["/bin/bash", str(checkout / "scripts/test")]
    both = [subprocess.Popen(command, env={"PATH": str(bare_path)}) for _ in range(2)]

    assert [process.wait(60) for process in both] == [0, 0]
    assert log.read_text().split("\n")[:-1] == ["uv start index=", "uv end"]


def test_what_pip_was_told_about_the_index_reaches_uv(checkout: Path, bare_path: Path) -> None:
    log = fake_venv(checkout)
    (checkout / "pip-config").write_text("global.index-url='http://mirror.test/simple'\n")

    run(checkout / "scripts/test", bare_path)

    assert "index=http://mirror.test/simple" in log.read_text()


def test_a_failed_install_tries_pip_says_so_and_is_tried_again(
    checkout: Path, bare_path: Path
) -> None:
    log = fake_venv(checkout)
    (checkout / "broken").touch()

    result = run(checkout / "scripts/test", bare_path)

    assert result.returncode == 2
    assert "trying pip" in result.stderr
    assert "pip install" in log.read_text()

    (checkout / "broken").unlink()
    assert run(checkout / "scripts/test", bare_path).returncode == 0
    assert "uv end" in log.read_text()


def test_proof_lists_its_names_and_refuses_others(checkout: Path, bare_path: Path) -> None:
    for name in ("grep", "paste", "sed"):
        (bare_path / name).symlink_to(shutil.which(name) or "/nonexistent")
    (checkout / "tests/proofs").mkdir(parents=True)
    (checkout / "tests/proofs/test_own_proof.py").touch()

    listed = run(checkout / "scripts/proof", bare_path)
    assert listed.returncode == 0
    assert "own_proof" in listed.stdout

    refused = run(checkout / "scripts/proof", bare_path, "nonsense")
    assert refused.returncode == 2
    assert "own_proof" in refused.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shell_scripts_are_shellcheck_clean() -> None:
    files = [p for p in [*SCRIPTS, ROOT / ".ci/run"] if "bash" in p.read_text().split("\n")[0]]
    result = subprocess.run(
        ["shellcheck", "-x", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert result.stdout == ""
    assert result.returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_are_executable_and_end_on_errors(script: Path) -> None:
    if script.name != "_setup":
        assert os.access(script, os.X_OK)
    text = script.read_text()
    assert "set -euo pipefail" in text or "/_setup" in text or text.startswith("#!/usr/bin/env py")


def test_every_proof_names_tests_that_exist() -> None:
    listed = subprocess.run(
        [str(ROOT / "scripts/proof")], capture_output=True, text=True, check=True
    ).stdout
    files = re.findall(r"\((tests/\S+)\)", listed)
    assert files
    assert all((ROOT / file).is_file() for file in files)
