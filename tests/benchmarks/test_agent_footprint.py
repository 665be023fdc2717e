"""The benchmark of the agent's footprint runs, and counts jitter right."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nvml_rig
import pytest

from benchmarks.agent_footprint import jitter_milliseconds, p99

ROOT = Path(__file__).parents[2]


def test_jitter_is_the_distance_from_an_even_cadence() -> None:
    assert jitter_milliseconds([100.0, 105.0, 110.25, 115.0], 5.0) == [0, 0, 250, 0]
    assert p99([float(i) for i in range(1, 201)]) == 198


@pytest.mark.slow
def test_it_prints_one_object_and_the_agent_ends_though_a_call_is_stuck(
    free_port: Callable[[], int],
) -> None:
    if nvml_rig.compiler() is None:
        pytest.skip("there is no C compiler (apt-get install gcc libc6-dev)")
    done = subprocess.run(
        [
            sys.executable, "benchmarks/agent_footprint.py", "--json", "--cards", "2",
            "--hung", "1", "--interval", "1", "--seconds", "4", "--port", str(free_port()),
        ],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=110,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["agent"]["states"] == ["ok", "unresponsive"]
    assert result["agent"]["resident_megabytes"] > result["peer"]["resident_megabytes"] > 0
    assert result["agent"]["messages"] >= 2
