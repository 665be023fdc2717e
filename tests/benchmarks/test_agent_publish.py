"""The benchmark of the agent's outbox runs and gives each way's figures."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_each_way_is_measured_beside_bare_paho() -> None:
    if shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    done = subprocess.run(
        [sys.executable, "benchmarks/agent_publish.py", "--messages", "50", "--json"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert list(figures) == ["paho", "publisher", "publisher_with_outbox"]
    assert figures["paho"]["cpu_to_paho"] == 1
    assert all(row["messages_a_second"] > 0 for row in figures.values())
