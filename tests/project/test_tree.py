"""What holds for every file of the project, and for its place among other distributions."""

import re
import subprocess
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "contract", "simulator", "agents", "stream", "models", "runner", "economics", "onebox",
    "rigcanary",
)  # fmt: skip
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Spelt in halves, so that this file does not name them itself.
REGISTRY_HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "registry." + "npmjs",
    "deb." + "debian.org",
]
MACHINE_PATHS = ["/ro" + "ot/", "/wo" + "rk/", "/home" + "/"]


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    """None for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked_files()
        if (text := text_of(path)) is not None
        for word in [*REGISTRY_HOSTS, *MACHINE_PATHS]
        if word in text
    ]
    assert found == []


def test_no_other_distribution_owns_our_import_names() -> None:
    owners = packages_distributions()
    for name in PACKAGES:
        assert set(owners.get(name, ["rigcanary"])) == {"rigcanary"}, (
            f"{name} also belongs to {owners[name]}: uninstall that distribution"
        )


def test_the_distribution_cannot_be_uploaded_by_mistake() -> None:
    assert "Private :: Do Not Upload" in PYPROJECT["project"]["classifiers"]


def test_tests_have_no_init_files() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_every_package_is_packed_and_checked_for_its_imports() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(wheel) == sorted(PACKAGES)
    assert sorted(PYPROJECT["tool"]["importlinter"]["root_packages"]) == sorted(PACKAGES)
    here = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert here == set(PACKAGES)


def test_constraints_pin_every_dependency_that_extras_name() -> None:
    pinned = {
        match[1].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if (match := re.match(r"([A-Za-z0-9._-]+)==", line))
    }
    named = {
        re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
        for group in [
            PYPROJECT["project"]["dependencies"],
            *PYPROJECT["project"]["optional-dependencies"].values(),
        ]
        for requirement in group
    }
    assert named - pinned - {"rigcanary"} == set()


def test_modules_stay_readable_in_one_go() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert long == {}


def test_licence_is_the_apache_text_in_full() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
