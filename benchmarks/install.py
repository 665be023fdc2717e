"""How long each extra takes to install, and how much disk it needs.

Every extra goes into a fresh virtual environment at the versions of constraints.txt: once with
an empty cache (everything is downloaded), once with the cache that this left. The peer is pip,
in the same run, on the same index.

    python benchmarks/install.py --json
    python benchmarks/install.py --extras agent,runner --no-peer
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("agent", "stream", "models", "runner", "embedded", "all", "dev", "notebooks")


def run(*command: str | Path, **environment: str) -> float:
    """Run to the end and return the wall seconds it took. Exits when the command fails."""
    start = time.perf_counter()
    result = subprocess.run(
        [str(word) for word in command],
        env={"UV_SYSTEM_CERTS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **os.environ}
        | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr[-2000:]}")
    return time.perf_counter() - start


def disk_bytes(folder: Path) -> int:
    """Bytes of the files under ``folder``, a hard link counted once."""
    entries = [path.lstat() for path in folder.rglob("*")]
    return sum({(entry.st_dev, entry.st_ino): entry.st_size for entry in entries}.values())


def with_uv(uv: Path, extra: str, folder: Path) -> dict[str, float]:
    """Cold and warm install by uv into ``folder``."""
    cache = str(folder / "cache")
    figures: dict[str, float] = {}
    for name in ("cold", "warm"):
        venv = folder / name
        run(uv, "venv", "--quiet", "--python", sys.executable, venv, UV_CACHE_DIR=cache)
        seconds = run(
            uv, "pip", "install", "--python", venv / "bin/python",
            "--constraints", ROOT / "constraints.txt", f"{ROOT}[{extra}]", UV_CACHE_DIR=cache,
        )  # fmt: skip
        figures[f"{name}_seconds"] = round(seconds, 1)
    figures["disk_megabytes"] = round(disk_bytes(folder / "cold") / 1e6)
    listing = subprocess.run(
        [str(uv), "pip", "freeze", "--python", str(folder / "cold/bin/python")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    figures["packages"] = len(listing.splitlines())
    return figures


def with_pip(extra: str, folder: Path) -> dict[str, float]:
    """Cold and warm install by pip into ``folder``."""
    cache = str(folder / "cache")
    figures: dict[str, float] = {}
    for name in ("cold", "warm"):
        venv = folder / name
        run(sys.executable, "-m", "venv", venv)
        seconds = run(
            venv / "bin/python", "-m", "pip", "install", "--quiet",
            "--constraint", ROOT / "constraints.txt", f"{ROOT}[{extra}]", PIP_CACHE_DIR=cache,
        )  # fmt: skip
        figures[f"{name}_seconds"] = round(seconds, 1)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--extras", default=",".join(EXTRAS), help="comma-separated")
    parser.add_argument("--no-peer", action="store_true", help="leave pip out")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments = parser.parse_args()
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        found = shutil.which("uv")
        if found is None:
            sys.exit("uv is not installed: run scripts/test --version once")
        uv = Path(found)

    extras: list[dict[str, object]] = []
    for extra in arguments.extras.split(","):
        figures: dict[str, object] = {"extra": extra}
        with tempfile.TemporaryDirectory(prefix="install-") as name:
            figures.update(with_uv(uv, extra, Path(name)))
        if not arguments.no_peer:
            with tempfile.TemporaryDirectory(prefix="install-") as name:
                figures["peer"] = {"name": "pip", **with_pip(extra, Path(name))}
        extras.append(figures)
        print(f"{extra}: {figures}", file=sys.stderr)

    result = {
        "benchmark": "install",
        "parameters": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
        "extras": extras,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print("| extra | packages | disk MB | cold s | warm s |\n|---|---|---|---|---|")
    for row in extras:
        print(
            f"| `{row['extra']}` | {row['packages']} | {row['disk_megabytes']} "
            f"| {row['cold_seconds']} | {row['warm_seconds']} |"
        )


if __name__ == "__main__":
    main()
