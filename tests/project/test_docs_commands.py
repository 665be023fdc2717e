"""The commands that README and docs show are real.

A block fenced as ``sh`` or ``console`` is read: each option of ``rigcanary NAME`` must exist, so
must each script. Of a block without a language the lines that begin with ``rigcanary`` are. A
block with ``<!-- run -->`` on the line before it is executed as well, in a folder of its own that
holds the project's scripts and benchmarks.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
import typer

from rigcanary.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
PAGES = [
    path for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    if path.exists()
]  # fmt: skip
FENCE = re.compile(
    r"^(?P<run><!-- run -->\n+)?```(?P<kind>sh|console|bash|)\n(?P<body>.*?)^```$", re.M | re.S
)
PREFIX = re.compile(r"[A-Z_]+=.*|sudo|exec|time")
# A command's own words end where the shell takes over.
SHELL_WORDS = {"|", "||", "&&", ";", ">", "2>", "&", "<"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    body: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[list[str]]:
        """Words of each command, comments and prompts removed; of a console, typed lines only."""
        joined = self.body.replace("\\\n", " ")
        lines = joined.splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        if not self.kind:
            lines = [line for line in lines if line.startswith("rigcanary ")]
        found = []
        for line in lines:
            words = shlex.split(line, comments=True)
            while words:
                ends = [i for i, word in enumerate(words) if word in SHELL_WORDS]
                end = ends[0] if ends else len(words)
                if words[:end]:
                    found.append(words[:end])
                words = words[end + 1 :]
        return found


def blocks() -> list[Block]:
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            page = str(path.relative_to(ROOT))
            found.append(Block(page, line, match["kind"], match["body"], bool(match["run"])))
    return found


def options_of(names: list[str]) -> set[str]:
    """Options of the subcommand that ``names`` begin with, its own subcommand included."""
    command: Any = typer.main.get_command(app)
    options = {"--help"}
    for name in names:
        inner = command.get_command(None, name) if hasattr(command, "get_command") else None
        if inner is None:
            break
        command = inner
        for parameter in command.params:
            options |= {*parameter.opts, *parameter.secondary_opts}
    return options


def check_rigcanary(arguments: list[str]) -> None:
    names = [word for word in arguments if not word.startswith("-")]
    if not names:
        return
    name = names[0]
    assert name in COMMANDS, f"rigcanary has no subcommand {name}"
    if find_spec(f"rigcanary.commands.{name.replace('-', '_')}") is None:
        pytest.skip(f"rigcanary {name} is not written yet")
    given = {word.split("=")[0] for word in arguments[1:] if word.startswith("--")}
    assert given <= options_of(names)


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_commands_shown_exist(block: Block) -> None:
    for typed in block.commands():
        words = list(dropwhile(PREFIX.fullmatch, typed))
        if not words:
            continue
        program = words[0].removeprefix("./")
        if program.rpartition("/")[2] == "rigcanary":
            check_rigcanary(words[1:])
        elif program.startswith(("scripts/", "benchmarks/")):
            assert (ROOT / program).exists(), f"{program} does not exist"
            if program == "scripts/demo":
                check_rigcanary(["demo", *words[1:]])
        elif program.startswith("python") and len(words) > 1 and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), f"{words[1]} does not exist"


@pytest.mark.parametrize("block", [b for b in blocks() if b.runs], ids=str)
def test_commands_marked_run_do_run(block: Block, tmp_path: Path) -> None:
    for name in ("scripts", "benchmarks", "examples"):
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RIGCANARY_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body], cwd=tmp_path, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert broken == []
