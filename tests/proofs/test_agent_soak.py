"""An agent through outages of its broker and reads that hang: every sample is accounted for.

In full (``scripts/proof agent-soak``) an hour at 5 s with an outage of ten minutes among them; else
a minute at 0.1 s.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_mosquitto import Mosquitto, Reader

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("RIGCANARY_PROOF_FULL") == "1"

AGENT = """
import logging, random, sys, time
from pathlib import Path
from agents.edge import connection, service
from agents import run
from agents.settings import AgentSettings, MqttSettings

port, state, interval, hang_share, seed = sys.argv[1:]
interval = float(interval)

class Fake:
    # Eight cards, and now and then a read that hangs for some intervals.
    name, enumerates = "fake", True
    random = random.Random(int(seed))
    hung = 0
    def read(self, now):
        if self.random.random() < float(hang_share):
            self.hung += 1
            print("hung", self.hung, flush=True)
            time.sleep(interval * self.random.uniform(1, 4))
        return [{"device": f"GPU-{i}", "index": i, "temperature_celsius": 50.0} for i in range(8)]
    def close(self):
        pass

logging.basicConfig(level=logging.INFO)
if interval < 1:
    connection.MAX_DELAY_SECONDS = 2.0
run.open_source = lambda name, settings: Fake()
service.serve(AgentSettings(site="lab", node="rig1", sources=("fake",), interval_seconds=interval,
                            state=Path(state), mqtt=MqttSettings(port=int(port))))
"""


@dataclass(frozen=True)
class Plan:
    interval: float
    calm_seconds: tuple[float, float]
    outages: tuple[float, ...]
    hang_share: float
    growth_kib: int


REDUCED = Plan(0.1, (4, 8), (3, 8, 5), 0.03, 3 * 1024)
HOUR = Plan(5.0, (470, 550), (30, 600, 5, 120, 60), 0.02, 6 * 1024)


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1])


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_every_sample_is_accounted_for(
    tmp_path: Path, free_port: Callable[[], int], request: pytest.FixtureRequest
) -> None:
    plan = HOUR if FULL else REDUCED
    seed = random.SystemRandom().randrange(10**6) if FULL else 3
    dice = random.Random(seed)
    broker = Mosquitto(tmp_path, free_port())
    request.addfinalizer(broker.stop)
    broker.start()
    reader = Reader(broker.port)
    wait_for(lambda: reader.subscribed, 20)
    state = tmp_path / "state"
    command = [sys.executable, "-c", AGENT, str(broker.port), str(state)]
    command += [str(plan.interval), str(plan.hang_share), str(seed)]
    log = tmp_path / "agent.log"
    with log.open("wb") as stderr, subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as agent:  # fmt: skip
        try:
            time.sleep(dice.uniform(*plan.calm_seconds))
            resident: list[int] = []
            for outage in plan.outages:
                broker.stop()
                time.sleep(outage)
                resident.append(resident_kib(agent.pid))
                broker.start()
                time.sleep(dice.uniform(*plan.calm_seconds))
                resident.append(resident_kib(agent.pid))
            wait_for(lambda: complete(reader), 120)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(30) == 0
            assert agent.stdout is not None
            hung = int((agent.stdout.read().split() or ["0"])[-1])
        finally:
            agent.kill()
    said = re.findall(r"(\d+) ticks, (\d+) skipped, (\d+) messages dropped", log.read_text())[-1]
    ticks, skipped, dropped = map(int, said)
    wait_for(lambda: len(sequence(reader)) == ticks, 30)
    reader.close()
    broker.stop()
    messages = reader.of("telemetry")
    times = [message["ts"] for message in messages]
    spanned = round((max(times) - min(times)) / plan.interval) + 1
    grown = max(resident[2:]) - resident[0]
    print(
        f"seed {seed}: {ticks} ticks, {skipped} skipped, {hung} hung reads, "
        f"{len(plan.outages)} outages of {sum(plan.outages):g} s, {len(messages)} messages at the "
        f"broker, {len(messages) - ticks} of them twice, resident {resident[0]} KiB, {grown:+} KiB"
    )
    assert sequence(reader) == set(range(ticks)), "a sample was lost"
    assert dropped == 0
    assert hung > 0
    assert re.search(r"fake late [1-9]", log.read_text()), "a hung read costs a reading"
    # Every tick of the time that passed is there as a message or is named as skipped.
    assert abs(ticks + skipped - spanned) <= 1
    assert len(set(times)) == ticks, "sample times survive"
    assert grown < plan.growth_kib
    assert list(state.glob("outbox/*.seg")) == [] or all(
        segment.stat().st_size <= 4 for segment in state.glob("outbox/*.seg")
    )


def sequence(reader: Reader) -> set[int]:
    return {message["seq"] for message in reader.of("telemetry")}


def complete(reader: Reader) -> bool:
    seen = sequence(reader)
    return seen == set(range(len(seen)))
