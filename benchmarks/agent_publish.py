"""What the store-and-forward outbox costs a message, beside bare paho on the same broker.

Three ways to send the same messages at QoS 1 to one Mosquitto: paho alone, our publisher without
an outbox, and with one on disk (which is what `rigcanary agent` runs). As a rig does, few messages
are under way at once. The figures are processor time of the sending process, so that the broker's
does not count.

    python benchmarks/agent_publish.py --messages 5000 --json
"""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from agents.edge.connection import Connection
from agents.edge.outbox import Outbox
from agents.edge.publisher import Publisher
from agents.settings import MqttSettings

TOPIC = "rigcanary/v1/lab/rig1/telemetry"
MESSAGE = b"x" * 4100  # bytes of one node with eight cards, as measured on the simulator
UNDER_WAY = 10  # messages sent and not yet acknowledged, at most
ANSWER_SECONDS = 60.0


def wait(done: Callable[[], bool]) -> None:
    """Wait until ``done``, or end when the broker does not answer."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while not done():
        if time.monotonic() > deadline:
            sys.exit("the broker did not answer")
        time.sleep(0.0002)


def measured(
    count: int, send: Callable[[], object], answered: Callable[[], int]
) -> dict[str, float]:
    """Processor and wall time of ``count`` messages."""
    before = answered()
    cpu, began = time.process_time(), time.monotonic()
    for index in range(count):
        if index - (answered() - before) >= UNDER_WAY:
            wait(lambda: index - (answered() - before) < UNDER_WAY)  # noqa: B023  # waits here
        send()
    wait(lambda: answered() - before >= count)
    seconds = time.monotonic() - began
    return {
        "cpu_microseconds_a_message": round((time.process_time() - cpu) / count * 1e6, 1),
        "messages_a_second": round(count / seconds),
    }


def bare_paho(port: int, count: int) -> dict[str, float]:
    """Paho alone."""
    answered = 0

    def on_publish(*_: Any) -> None:
        nonlocal answered
        answered += 1

    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="bare")
    client.on_publish = on_publish
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait(client.is_connected)
    figures = measured(count, lambda: client.publish(TOPIC, MESSAGE, qos=1), lambda: answered)
    client.disconnect()
    client.loop_stop()
    return figures


def ours(port: int, count: int, outbox: Outbox | None) -> dict[str, float]:
    """Our publisher, on the settings that the agent has by default."""
    connection = Connection(
        MqttSettings(port=port), "agent", "rigcanary/v1/lab/rig1/status", lambda: b"1", lambda: b"0"
    )
    publisher = Publisher(connection, UNDER_WAY * 10, outbox)
    publisher.open()
    wait(lambda: publisher.connected)
    figures = measured(
        count, lambda: publisher.publish(TOPIC, MESSAGE), lambda: publisher.acknowledged
    )
    publisher.close()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        sys.exit("mosquitto is not installed; run: apt-get install mosquitto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "mosquitto.conf"
        config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
        broker = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            time.sleep(1.0)
            count = arguments.messages
            figures = {
                "paho": bare_paho(port, count),
                "publisher": ours(port, count, None),
                "publisher_with_outbox": ours(
                    port, count, Outbox(folder / "outbox", 64 * 1024 * 1024, 3600.0)
                ),
            }
        finally:
            broker.terminate()
            broker.wait(30)
    floor = figures["paho"]["cpu_microseconds_a_message"]
    for row in figures.values():
        row["cpu_to_paho"] = round(row["cpu_microseconds_a_message"] / floor, 2)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, row in figures.items():
        print(f"{name:24}" + "  ".join(f"{key} {value:g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
