"""The supervisor with real processes: order, crashes, and that nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from contract.errors import ConfigError, RigcanaryError
from onebox import processes, sentinel
from onebox.child import ChildSpec
from onebox.processes import MAX_RESTARTS, Supervisor

IGNORES_TERM = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
HAS_A_CHILD = (
    "import subprocess,sys,time; "
    "code='import time; time.sleep(60)'; "
    "p=subprocess.Popen([sys.executable,'-c',code],start_new_session=True); "
    "print(p.pid); time.sleep(60)"
)


def spec(code: str, name: str = "part", **options) -> ChildSpec:
    return ChildSpec(name=name, argv=(sys.executable, "-c", code), **options)


def written(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir()}


def says(child_log: Path, text: str):
    async def ready() -> bool:
        return text in written(child_log.parent).get(child_log.name, "")

    return ready


def alive(pid: int) -> bool:
    """Runs; one that ended and waits for init to take note does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def never() -> bool:
    return False


async def until(condition, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def test_ready_output_and_end(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    async with Supervisor(tmp_path, observer=lambda n, s, _: seen.append((n, s))) as supervisor:
        child = await supervisor.start(
            spec(
                "print('hello'); import time; time.sleep(60)",
                ready=says(tmp_path / "part.log", "hello"),
            )
        )
        pid = child.pid
        assert pid is not None
        assert os.getpgid(pid) == pid  # a Ctrl-C at the terminal does not reach it
    assert seen == [("part", s) for s in ("starting", "ready", "stopping", "ended")]
    assert not alive(pid)


async def test_one_that_ignores_term_is_killed(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = await supervisor.start(
            spec(IGNORES_TERM, ready=says(tmp_path / "part.log", "up"), stop_seconds=0.2)
        )
        await supervisor.stop(["part"])
        assert child.process is not None
        assert child.process.returncode == -signal.SIGKILL


async def test_grandchildren_in_their_own_session_end_too(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = await supervisor.start(spec(HAS_A_CHILD, ready=says(tmp_path / "part.log", "\n")))
        grandchild = int(child.output.last[0])
        assert alive(grandchild)
    await until(lambda: not alive(grandchild))


async def test_failing_start_says_why(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        with pytest.raises(RigcanaryError, match="part ended while starting.*no such thing"):
            await supervisor.start(spec("raise SystemExit('no such thing')", ready=never))
        with pytest.raises(ConfigError, match=r"--port is wrong"):
            await supervisor.start(
                spec(
                    "import sys; print('rigcanary: --port is wrong\\nbye', file=sys.stderr);"
                    "sys.exit(2)",
                    name="other",
                    ready=never,
                )
            )
        with pytest.raises(RigcanaryError, match="cannot start third"):
            await supervisor.start(ChildSpec(name="third", argv=("/nowhere/program",)))

        with pytest.raises(RigcanaryError, match=r"slow was not ready within 0 s"):
            await supervisor.start(
                spec("import time; time.sleep(60)", name="slow", ready=never, ready_seconds=0.2)
            )


async def test_crash_is_answered_with_a_new_start(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = await supervisor.start(spec("import time; time.sleep(60)", restart=True))
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: child.restarts == 1 and child.state == "ready")
        assert child.pid != first
        assert not supervisor.failed.done()


async def test_one_that_keeps_crashing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_BACKOFF_SECONDS", (0.01, 0.02))
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(spec("print('broken'); raise SystemExit(3)", restart=True))
        with pytest.raises(RigcanaryError, match=r"gave part up after \d+ restarts.*broken"):
            await asyncio.wait_for(asyncio.shield(supervisor.failed), 30)
        assert supervisor.children["part"].restarts == MAX_RESTARTS


async def test_one_that_may_end_is_no_crash(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        good = await supervisor.start(spec("pass", name="good", may_end=True))
        bad = await supervisor.start(spec("raise SystemExit(1)", name="bad", may_end=True))
        await until(lambda: good.state == "ended" and bad.state == "failed")
        assert not good.crashed.is_set()
        assert bad.crashed.is_set()


async def test_back_off_is_bounded_and_jittered(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    waits = [[supervisor.backoff_seconds(n) for _ in range(50)] for n in range(1, 20)]
    for n, several in enumerate(waits, start=1):
        most = min(20.0, 0.5 * 2 ** (n - 1))
        assert all(most / 2 <= w <= most for w in several)
        assert len(set(several)) > 1


async def test_log_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onebox.logs.MAX_BYTES", 10_000)
    async with Supervisor(tmp_path) as supervisor:
        child = await supervisor.start(
            spec("for n in range(3000): print('line', n)\nprint('x' * 100_000)", may_end=True)
        )
        await until(lambda: child.state == "ended")
    assert child.output.lines >= 3000
    sizes = {name: len(text) for name, text in written(tmp_path).items()}
    assert set(sizes) == {"part.log", "part.log.1"}
    assert max(sizes.values()) < 30_000


SUPERVISED = """
import asyncio, sys
from pathlib import Path
from onebox.child import ChildSpec
from onebox.processes import Supervisor

async def main():
    async with Supervisor(Path(sys.argv[1])) as supervisor:
        child = await supervisor.start(ChildSpec("part", (sys.executable, "-c", sys.argv[2])))
        while not child.output.last:
            await asyncio.sleep(0.05)
        print(supervisor.run_id, child.pid, child.output.last[0], flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, str(tmp_path), HAS_A_CHILD],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    run_id, *pids = process.stdout.readline().split()
    assert len(sentinel.marked(run_id)) == 2
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 20
    while (left := sentinel.marked(run_id)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not any(alive(int(pid)) for pid in pids)
