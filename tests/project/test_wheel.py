"""The built wheel, installed alone on a rig: the agent runs, TensorFlow and Faust stay away."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "contract", "simulator", "agents", "stream", "models", "runner", "economics", "onebox",
    "rigcanary",
)  # fmt: skip
UV = Path(sys.executable).with_name("uv")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


# As scripts/_setup does: uv trusts the certificates that the system trusts.
ENVIRONMENT = {"UV_SYSTEM_CERTS": "1", **os.environ}


def call(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, env=ENVIRONMENT,
    )  # fmt: skip
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has of the project, as it lies in the working tree."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("source")
    for name in call("git", "ls-files", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    if UV.exists():
        call(UV, "build", "--quiet", "--wheel", "--out-dir", out, source)
    else:
        call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", out, source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def rig(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin folder of a virtual environment with the wheel's extra ``agent`` and nothing else."""
    venv = tmp_path_factory.mktemp("rig") / "venv"
    constraints = ROOT / "constraints.txt"
    if UV.exists():
        call(UV, "venv", "--quiet", "--python", sys.executable, venv)
        call(UV, "pip", "install", "--quiet", "--python", venv / "bin/python",
             "--constraints", constraints, f"{wheel}[agent]")  # fmt: skip
    else:
        call(sys.executable, "-m", "venv", venv)
        call(venv / "bin/python", "-m", "pip", "install", "--quiet", "-c", constraints,
             f"{wheel}[agent]")  # fmt: skip
    return venv / "bin"


def test_wheel_holds_every_file_of_the_packages_and_no_other(wheel: Path, source: Path) -> None:
    expected = {
        str(path.relative_to(source))
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert packed == expected


def test_agent_prints_one_message_without_tensorflow_or_faust(rig: Path, tmp_path: Path) -> None:
    absent = (
        "import importlib.util as u; print([n for n in ('tensorflow', 'faust') if u.find_spec(n)])"
    )
    assert call(rig / "python", "-c", absent).strip() == "[]"

    # In an empty folder, so that nothing of the checkout is importable.
    printed = call(rig / "rigcanary", "agent", "--once", "--json", "--source", "sim", cwd=tmp_path)

    (line,) = printed.splitlines()
    message = json.loads(line)
    assert message["schema"] == "rigcanary.telemetry/1"
    assert message["devices"]


def test_other_subcommands_say_which_extra_they_need(rig: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [str(rig / "rigcanary"), "worker"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "rigcanary[" in line
    assert "stream" in line
