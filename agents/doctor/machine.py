"""The rig as the checks see it: files under a root folder, tools with a deadline, environment.

Tests give a folder for the root and recorded answers for the tools.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DEADLINE_SECONDS: Final = 10.0
"""How long a tool may take. nvidia-smi without persistence mode loads the driver first, which
takes some seconds on a rig of many cards; a tool on a hung card never answers."""

_REAP_SECONDS: Final = 1.0
_TEXT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool printed, or why there is nothing to read.

    ``problem`` is None where it ran to its end with exit code 0; ``text`` may hold what it said
    even when it failed.
    """

    text: str
    problem: str | None = None

    @property
    def good(self) -> str | None:
        """The text of a tool that succeeded."""
        return self.text if self.problem is None else None


RunTool = Callable[[tuple[str, ...], float, Mapping[str, str]], Answer]


def run_tool(argv: tuple[str, ...], deadline_seconds: float, env: Mapping[str, str]) -> Answer:
    """Run a tool; kill it with all its children when ``deadline_seconds`` have passed."""
    name = argv[0]
    program = shutil.which(name, path=env.get("PATH"))
    if program is None:
        return Answer("", f"the tool {name} is not installed")
    try:
        child = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**env, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Answer("", f"{name} cannot be started: {error.strerror}")
    try:
        printed, _ = child.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        _kill(child)
        return Answer("", f"{name} gave no answer within {deadline_seconds:g} s and was killed")
    except BaseException:
        _kill(child)
        raise
    text = printed.decode(errors="replace")
    if child.returncode != 0:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        return Answer(text, f"{name} ended with code {child.returncode}: {said[:160]}")
    return Answer(text)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """End the child's whole group. One stuck in a driver call cannot die: it is left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.communicate(timeout=_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        if child.stdout is not None:
            child.stdout.close()


@dataclass(slots=True)
class Machine:
    """A rig. ``root`` stands for ``/``; a tool that was asked once is not run again."""

    root: Path = Path("/")
    tool: RunTool = run_tool
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.geteuid)
    pause: Callable[[float], None] = time.sleep
    _answers: dict[tuple[str, ...], Answer] = field(default_factory=dict)

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    def path(self, path: str) -> Path:
        """Where the rig's absolute ``path`` lies."""
        return self.root / path.lstrip("/")

    def read(self, path: str | Path) -> str | None:
        """A small text file, stripped; None where it is absent or may not be read."""
        full = self.path(path) if isinstance(path, str) else path
        try:
            with full.open("rb") as file:
                return file.read(_TEXT_BYTES).decode(errors="replace").strip()
        except OSError:
            return None

    def entries(self, path: str | Path) -> list[Path]:
        """What a folder holds, sorted by name; nothing where it is absent or may not be read."""
        full = self.path(path) if isinstance(path, str) else path
        try:
            return sorted(full.iterdir())
        except OSError:
            return []

    def run(self, *argv: str, deadline_seconds: float = DEADLINE_SECONDS) -> Answer:
        """What the tool ``argv[0]`` prints (with LC_ALL=C); never raises, never hangs."""
        if argv not in self._answers:
            self._answers[argv] = self.tool(argv, deadline_seconds, self.environment)
        return self._answers[argv]
