"""Handles on the benchmark's own processes: the generator, and the peers."""

import asyncio
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.e2e import generator
from benchmarks.e2e.generator import GeneratorSettings, Snapshot
from contract.errors import RigcanaryError

ROOT = Path(__file__).resolve().parents[2]


class GeneratorProcess:
    """The generator in a process of its own, asked over a pipe."""

    def __init__(self, settings: GeneratorSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=generator.main, args=(settings, theirs), name="generator", daemon=True
        )
        self._process.start()
        theirs.close()
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        if pid is None:
            raise RigcanaryError("the generator did not start")
        return pid

    async def url(self) -> str:
        """Address of the webhook receiver; ask once, first."""
        return str(await asyncio.to_thread(self._receive))

    async def connect(self) -> None:
        """Connect the MQTT clients."""
        self._pipe.send(("connect", None))
        await asyncio.to_thread(self._receive)

    def tell(self, name: str, value: Any = None) -> None:
        """Send a command that has no answer."""
        self._pipe.send((name, value))

    async def snapshot(self, first: float = 0, last: float = 0) -> Snapshot:
        """What it has done; ``sent`` counts the minutes that start in [first, last)."""
        async with self._lock:
            self._pipe.send(("snapshot", (first, last)))
            answer = await asyncio.to_thread(self._receive)
        if not isinstance(answer, Snapshot):
            raise RigcanaryError(f"the generator answered {answer!r}")
        return answer

    def _receive(self) -> Any:
        if not self._pipe.poll(60):
            raise RigcanaryError("the load generator does not answer; see its traceback above")
        try:
            return self._pipe.recv()
        except EOFError:
            raise RigcanaryError("the load generator ended; see its traceback above") from None

    async def stop(self) -> None:
        """End it."""
        if self._process.is_alive():
            self._pipe.send(("stop", None))
            await asyncio.to_thread(self._process.join, 5)
        if self._process.is_alive():
            self._process.kill()


async def run_peer(name: str, *arguments: object, timeout_seconds: float) -> dict[str, Any] | None:
    """Run one peer of ``benchmarks.e2e.peers``; None when it did not finish in time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.e2e.peers", name, *map(str, arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    # Faust shows and hides the cursor around its own output.
    start = output.rfind(b"{")
    found: dict[str, Any] | None = json.loads(output[start:]) if start >= 0 else None
    return found
