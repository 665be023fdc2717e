"""From a worker's death to the next committed step, with and without the standby process.

Each step is committed here. The times are printed, never asserted.
"""

import os
import signal
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trainer_run import Run

FULL = os.environ.get("RIGCANARY_PROOF_FULL") == "1"
KILLS = 5 if FULL else 1


def is_back(generation: int, step: int, status: dict[str, Any]) -> bool:
    committed = status["committed_step"] or 0
    return bool(status["generation"] >= generation and committed > step + 1)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(0)
@pytest.mark.parametrize("standby", [True, False], ids=["standby", "none"])
def test_a_dead_worker_is_replaced(tmp_path: Path, standby: bool) -> None:
    run = Run(
        tmp_path / "run", workers=2, codec="onebit", warmup_steps=0, steps=100_000,
        save_interval=1, standby=standby, step_seconds=0.1, keep_last=3,
    )  # fmt: skip
    try:
        run.wait_for(partial(is_back, 1, 3))
        for kill in range(KILLS):
            before = run.status
            os.kill(before["pids"][kill % 2], signal.SIGKILL)
            run.wait_for(partial(is_back, before["generation"] + 1, before["committed_step"]))
        run.stop()
        run.wait()
    finally:
        run.kill()
    restarts = run.status["restarts"]
    assert len(restarts) == KILLS
    times = [restart["seconds_to_commit"] for restart in restarts]
    print(
        f"\nrecovery {'with' if standby else 'without'} standby: median "
        f"{statistics.median(times):.1f} s, {min(times):.1f}-{max(times):.1f} s, {KILLS} kills"
    )
