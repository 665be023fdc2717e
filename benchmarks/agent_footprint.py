"""What the agent costs a rig: CPU, memory and the steadiness of its cadence.

The real ``rigcanary agent`` with the source ``nvml`` runs over a stub of NVIDIA's library (built
with cc from tests/support) and publishes to a rumqttd broker, which runs in this process. The
peer is a Python that only waits: its memory is the floor below which no Python agent gets.

    python benchmarks/agent_footprint.py --seconds 300 --json
    python benchmarks/agent_footprint.py --cards 8 --hung 1
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import paho.mqtt.client as paho
from iotcore import Broker
from paho.mqtt.enums import CallbackAPIVersion

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import nvml_rig  # noqa: E402  # lies beside the tests, which build the same stub

BROKER = """
id = 0
[router]
id = 0
max_connections = 10
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
    [v4.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = 1048576
    max_inflight_count = 100
    dynamic_filters = true
"""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
WARM_UP_TICKS = 3


def full_card(index: int) -> dict[str, Any]:
    """A card that supports every field: the most that a read can cost."""
    return nvml_rig.card(
        f"GPU-{index:08d}-0000-4000-8000-000000000000",
        memory=80,
        fan=55,
        rpm=2100,
        ecc_corrected=0,
        ecc_uncorrected=0,
        ecc_corrected_aggregate=3,
        ecc_uncorrected_aggregate=0,
        retired_corrected=1,
        retired_uncorrected=0,
        retired_pending=0,
        remapped="0 0 0 0",
        sm_clock=1700,
        memory_clock=5000,
        throttle="0x4",
        replay=12,
        generation=3,
        generation_max=3,
        samples=" ".join(["180000", "183000"] * 30),
    )


def status_megabytes(pid: int, key: str) -> float:
    """A size from /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(key)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def python_floor_megabytes() -> float:
    """Resident memory of a Python that only waits."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        size = status_megabytes(child.pid, "VmRSS")
        child.kill()
    return size


def p99(values: list[float]) -> float:
    """The 99th percentile by nearest rank."""
    return sorted(values)[max(0, math.ceil(0.99 * len(values)) - 1)]


def jitter_milliseconds(ts: list[float], interval: float) -> list[float]:
    """How far each sample lies from an even cadence through all of them."""
    offsets = [t - k * interval for k, t in enumerate(ts)]
    middle = statistics.median(offsets)
    return [abs(offset - middle) * 1000 for offset in offsets]


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the agent and take its figures after a warm-up of three ticks."""
    library = nvml_rig.build(folder)
    cards = [full_card(index) for index in range(arguments.cards)]
    for card in cards[: arguments.hung]:
        card["power"] = "sleep"
    script = folder / "script.txt"
    script.write_text(nvml_rig.script_text(cards))
    config = folder / "broker.toml"
    config.write_text(BROKER.format(port=arguments.port))
    broker = Broker(config_path=str(config)).start()
    received: list[dict[str, Any]] = []
    subscribed = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2)

    def on_connect(*_: Any) -> None:
        client.subscribe("rigcanary/v1/+/+/telemetry", qos=1)

    client.on_connect = on_connect
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _client, _data, message: received.append(
        orjson.loads(message.payload)
    )
    client.connect("127.0.0.1", arguments.port)
    client.loop_start()
    if not subscribed.wait(30):
        sys.exit("the broker did not answer")
    agent = subprocess.Popen(
        [
            sys.executable, "-c", "from rigcanary.cli import main; main()", "agent",
            "--source", "nvml", "--interval", f"{arguments.interval:g}",
            "--mqtt", f"127.0.0.1:{arguments.port}", "--site", "lab", "--node", "rig001",
        ],
        env=nvml_rig.environment(library, script),
    )  # fmt: skip
    try:
        wait_for_ticks(received, WARM_UP_TICKS, arguments.interval, agent)
        began, cpu = time.monotonic(), cpu_seconds(agent.pid)
        first = len(received)
        time.sleep(arguments.seconds)
        seconds, cpu = time.monotonic() - began, cpu_seconds(agent.pid) - cpu
        resident = status_megabytes(agent.pid, "VmRSS")
        peak = status_megabytes(agent.pid, "VmHWM")
    finally:
        agent.terminate()
        agent.wait(30)
        client.loop_stop()
        broker.stop()
    messages = received[first:]
    if len(messages) < 2:
        sys.exit("--seconds is too short: fewer than two messages came")
    late = jitter_milliseconds([message["ts"] for message in messages], arguments.interval)
    return {
        "cpu_percent_of_one_core": round(100 * cpu / seconds, 3),
        "resident_megabytes": round(resident, 1),
        "peak_megabytes": round(peak, 1),
        "cadence_jitter_ms": {"p50": round(statistics.median(late), 2), "p99": round(p99(late), 2)},
        "messages": len(messages),
        "states": sorted(device["state"] for device in messages[-1]["devices"]),
    }


def wait_for_ticks(
    received: list[dict[str, Any]], count: int, interval: float, agent: "subprocess.Popen[bytes]"
) -> None:
    """Wait for ``count`` messages, or end when the agent does not come up."""
    deadline = time.monotonic() + 60 + count * interval
    while len(received) < count:
        if agent.poll() is not None or time.monotonic() > deadline:
            sys.exit("the agent sent nothing")
        time.sleep(0.05)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--hung", type=int, default=0, help="cards whose power call never returns")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=120.0, help="measured, after the warm-up")
    parser.add_argument("--port", type=int, default=18_837, help="of the broker")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments = parser.parse_args()
    if nvml_rig.compiler() is None:
        sys.exit("there is no C compiler (apt-get install gcc libc6-dev)")
    with tempfile.TemporaryDirectory(prefix="footprint-") as name:
        figures = measure(arguments, Path(name))
    result: dict[str, Any] = {
        "benchmark": "agent_footprint",
        "parameters": {
            "cards": arguments.cards,
            "hung": arguments.hung,
            "interval_seconds": arguments.interval,
            "seconds": arguments.seconds,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
        },
        "agent": figures,
        "peer": {
            "name": "a Python that only waits",
            "resident_megabytes": round(python_floor_megabytes(), 1),
        },
    }
    if arguments.json:
        print(json.dumps(result))
        return
    jitter = figures["cadence_jitter_ms"]
    print(
        "| | CPU, % of a core | resident MB | peak MB | jitter p50 ms | p99 ms |\n"
        "|---|---|---|---|---|---|\n"
        f"| agent, {arguments.cards} cards, {arguments.hung} hung "
        f"| {figures['cpu_percent_of_one_core']} | {figures['resident_megabytes']} "
        f"| {figures['peak_megabytes']} | {jitter['p50']} | {jitter['p99']} |\n"
        f"| {result['peer']['name']} | 0 | {result['peer']['resident_megabytes']} | | | |"
    )


if __name__ == "__main__":
    main()
