"""Workers die and freeze all the time; the run ends, and with the very weights of a calm one.

In full (``scripts/proof trainer-chaos``) 30 minutes each without and with warnings, reduced to
three minutes without. A warning comes ahead of 90 % of the failures; what it leads to is a
planned move: a checkpoint, and new processes before the card dies, so that its death hits
nothing. Without a warning the steps since the last checkpoint are done again.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_run import Run, content

FULL = os.environ.get("RIGCANARY_PROOF_FULL") == "1"
MINUTES = float(os.environ.get("RIGCANARY_PROOF_MINUTES", "30" if FULL else "3"))
WORLD = 4
STEP_SECONDS = 0.2 if FULL else 0.6  # a third of the steps in the same three minutes
STEPS = int(MINUTES * 60 / STEP_SECONDS)
WARNED_SHARE = 0.9
SETTINGS: dict[str, Any] = {
    "workers": WORLD, "codec": "onebit", "steps": STEPS, "batch_size": 8, "beat_seconds": 5,
    "save_interval": min(150, STEPS // 6), "learning_rate": 0.02, "max_failures": 1000,
    "failure_threshold": 1000,
}  # fmt: skip


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "calm", **SETTINGS)
    yield run
    run.kill()


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(0)
def test_kills_and_stops_every_minute_change_no_bit(calm: Run, tmp_path: Path) -> None:
    calm.wait(seconds=MINUTES * 600 + 600)
    wanted = content(calm.folder, WORLD)
    for name in ("without warnings", "with warnings")[: 2 if FULL else 1]:
        seed = random.randrange(1 << 30)
        run = Run(tmp_path / name.replace(" ", "-"), **SETTINGS, step_seconds=STEP_SECONDS)
        begun = time.monotonic()
        try:
            counts = disturb(run, random.Random(seed), warned=name == "with warnings")
            run.wait(seconds=60)
        finally:
            run.kill()
        status = run.status
        print(
            f"\nchaos {name}, seed {seed}: {counts}, goodput {status['goodput']:.3f}, "
            f"{status['lost_seconds']:.0f} s of steps lost, {time.monotonic() - begun:.0f} s in "
            f"all for {STEPS} steps, loss {run.losses[-1]:.4f} (calm {calm.losses[-1]:.4f})"
        )
        assert counts["killed"] + counts["stopped"] + counts["moved"] >= int(MINUTES) - 1
        assert status["committed_step"] == STEPS
        assert content(run.folder, WORLD) == wanted


def disturb(run: Run, rng: random.Random, *, warned: bool) -> dict[str, int]:
    """A failure a minute until the run is over."""
    counts = {"killed": 0, "stopped": 0, "moved": 0, "missed": 0}
    run.wait_for(lambda s: s["step"] > 0)
    while run.process.poll() is None:
        failure_at = time.monotonic() + rng.uniform(50, 70)
        while time.monotonic() < failure_at and run.process.poll() is None:
            time.sleep(0.2)
        if run.process.poll() is not None:
            break
        if warned and rng.random() < WARNED_SHARE:
            run.order(renew=True)
            counts["moved"] += 1
            continue
        kind = rng.choice(["killed", "stopped"])
        try:
            pid = rng.choice(run.status["pids"])
            os.kill(pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
            counts[kind] += 1
        except ProcessLookupError:
            counts["missed"] += 1  # it was being replaced at this moment
    return counts
