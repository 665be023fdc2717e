"""Builds the stub of NVIDIA's management library and runs a sampler over it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "nvml_stub" / "nvml_stub.c"


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the stub into ``folder`` and return the folder, for ``LD_LIBRARY_PATH``."""
    name = "libnvidia-ml.so.1"
    subprocess.run(
        [
            compiler() or "cc", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation",
            "-shared", "-fPIC", f"-Wl,-soname,{name}", "-pthread",
            "-o", str(folder / name), str(SOURCE),
        ],
        check=True,
    )  # fmt: skip
    return folder


def environment(library: Path, script: Path) -> dict[str, str]:
    """The environment in which a child finds the stub and its script."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "RIGCANARY_NVML_STUB": str(script),
        "PYTHONPATH": str(ROOT),
    }


def card(uuid: str, **fields: Any) -> dict[str, Any]:
    """The script's fields of a consumer card, with ``fields`` over them (None: not supported)."""
    base: dict[str, Any] = {
        "uuid": uuid,
        "name": "NVIDIA GeForce GTX 1070 Ti",
        "temperature": 60,
        "power": 180_250,
        "utilization": 97,
        "width": 16,
        "width_max": 16,
    }
    return {key: value for key, value in (base | fields).items() if value is not None}


def script_text(cards: list[dict[str, Any]], driver: str = "570.1", **top: Any) -> str:
    """The script of a rig with ``cards`` (see nvml_stub.c)."""
    lines = [f"driver {driver}", *(f"{key} {value}" for key, value in top.items())]
    if "count" not in top:
        lines.append(f"count {len(cards)}")
    for index, fields in enumerate(cards):
        lines += [f"{index}.{key} {value}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


@dataclass
class Rig:
    """A child process that ticks when told, over cards that the test changes in between."""

    script: Path
    cards: list[dict[str, Any]]
    driver: str = "570.1"
    top: dict[str, Any] = field(default_factory=dict)
    process: "subprocess.Popen[str] | None" = None
    ticks: int = 0

    def tick(self, seconds: float | None = None) -> dict[str, Any]:
        """One tick, 5 s after the one before, or at ``seconds``."""
        # Renamed into place: the stub, in another process, never sees half a script.
        new = self.script.with_suffix(".new")
        new.write_text(script_text(self.cards, self.driver, **self.top))
        new.replace(self.script)
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if seconds is not None:
            self.ticks = round(seconds / 5)
        print(self.ticks, file=self.process.stdin, flush=True)
        self.ticks += 1
        line = self.process.stdout.readline()
        assert line, "the child ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def states(self) -> list[str]:
        """Tick, and return the states of the devices."""
        return [device["state"] for device in self.tick()["devices"]]


@contextmanager
def running(
    library: Path, folder: Path, cards: list[dict[str, Any]], **settings: Any
) -> Iterator[Rig]:
    """A rig with ``cards`` whose sampler runs in a child."""
    rig = Rig(folder / "script.txt", cards)
    rig.script.write_text(script_text(cards))
    rig.process = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("nvml_child.py")),
            json.dumps({"interval_seconds": 5.0, "sources": ["nvml"], **settings}),
        ],
        env=environment(library, rig.script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield rig
    finally:
        assert rig.process.stdin is not None
        assert rig.process.stdout is not None
        rig.process.stdin.close()
        # A call that sleeps for an hour must not keep the process: it ends by itself.
        code = rig.process.wait(timeout=30)
        rig.process.stdout.close()
    assert code == 0
