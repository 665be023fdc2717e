"""Bridges as processes: shared load, kill -9 under load, SIGTERM, settings."""

import asyncio
import os
import re
import signal
import sys
import time
import urllib.request

import orjson
import paho.mqtt.client as mqtt
import pytest
from aiokafka import AIOKafkaConsumer
from paho.mqtt.enums import CallbackAPIVersion

from contract.errors import ConfigError
from contract.topics import TELEMETRY
from rigcanary.cli import run
from stream.bridge_settings import BridgeSettings
from stream.edge.bridge import Bridge

MESSAGES = int(os.environ.get("RIGCANARY_PROOF_MESSAGES", "600"))


class Load:
    """Publishes ``MESSAGES`` telemetry messages of eight nodes, QoS 1, in the background."""

    def __init__(self, address: str, site: str) -> None:
        self.site = site
        host, port = address.split(":")
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        self.client.max_queued_messages_set(0)
        self.client.connect(host, int(port))
        self.client.loop_start()
        self.expected: set[tuple[str, int]] = set()

    async def publish(self, count: int, begin: int = 0, pause: float = 0.001) -> None:
        infos = []
        for seq in range(begin, begin + count):
            node = f"r{seq % 8}"
            body = {
                "schema": "rigcanary.telemetry/1", "site": self.site, "node": node, "boot_id": "b",
                "seq": seq, "ts": time.time(), "interval_seconds": 5.0,
                "devices": [{"device": f"GPU-{node}", "index": 0, "state": "ok"}],
            }  # fmt: skip
            topic = f"rigcanary/v1/{self.site}/{node}/telemetry"
            infos.append(self.client.publish(topic, orjson.dumps(body), 1))
            self.expected.add((node, seq))
            await asyncio.sleep(pause)
        for info in infos:
            await asyncio.to_thread(info.wait_for_publish, 20)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


async def arrived(address: str, site: str, expected: set, seconds: float = 45) -> list:
    """(node, seq) of every message in Kafka, once all of ``expected`` are there."""
    consumer = AIOKafkaConsumer(
        TELEMETRY, bootstrap_servers=address, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    await consumer.start()
    found: list = []
    deadline = time.monotonic() + seconds
    try:
        while not expected <= set(found):
            missing = expected - set(found)
            assert time.monotonic() < deadline, f"{len(missing)} lost: {sorted(missing)[:5]}"
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                for record in batch:
                    for m in orjson.loads(record.value)["messages"]:
                        if m["site"] == site:
                            found.append((m["node"], m["seq"]))
        return found
    finally:
        await consumer.stop()


class Process:
    """A bridge as a child process, its log read until it is ready."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.log: list[str] = []

    async def start(self) -> "Process":
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rigcanary", "bridge", *self.options,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.child.stderr is not None
        async with asyncio.timeout(30):
            while not self.log or "bridge ready" not in self.log[-1]:
                line = await self.child.stderr.readline()
                assert line, f"the bridge ended: {self.log}"
                self.log.append(line.decode())
        self.reader = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.child.stderr is not None
        while line := await self.child.stderr.readline():
            self.log.append(line.decode())

    async def end(self, number: int) -> int:
        self.child.send_signal(number)
        async with asyncio.timeout(10):
            code = await self.child.wait()
            await self.reader
        return code


def options(
    mqtt_address: str, kafka_address: str, client_id: str, *more: str, profile: str = "embedded"
) -> list[str]:
    return [
        "--mqtt", mqtt_address, "--kafka", kafka_address, "--profile", profile,
        "--client-id", client_id, *more,
    ]  # fmt: skip


async def test_sigterm_flushes_and_leaves_the_session(own_mqtt, kafka_broker, unique):
    bridge = await Process(*options(own_mqtt.address, kafka_broker.address, unique)).start()
    load = Load(own_mqtt.address, unique)
    await load.publish(200, pause=0)
    assert await bridge.end(signal.SIGTERM) == 0
    await load.publish(50, 200, pause=0)  # while no bridge is there
    bridge = await Process(*options(own_mqtt.address, kafka_broker.address, unique)).start()
    found = await arrived(kafka_broker.address, unique, load.expected)
    assert await bridge.end(signal.SIGINT) == 0
    load.close()
    assert len(found) == 250  # nothing twice: what Kafka had was acknowledged before the end
    assert not any("Traceback" in line for line in bridge.log)


@pytest.mark.parametrize(
    "any_kafka",
    [
        "own_kafka",
        pytest.param("own_apache_kafka", marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
    ],
    indirect=True,
)
async def test_kill_under_load_loses_nothing(own_mqtt, any_kafka, unique):
    # No share: rumqttd does not survive it.
    arguments = options(
        own_mqtt.address, any_kafka.address, unique, "--share", "", profile=any_kafka.profile
    )
    load = Load(own_mqtt.address, unique)
    bridge = await Process(*arguments).start()
    publishing = asyncio.create_task(load.publish(MESSAGES))
    for _ in range(2):
        await asyncio.sleep(0.2)
        assert await bridge.end(signal.SIGKILL) == -signal.SIGKILL
        bridge = await Process(*arguments).start()
    await publishing
    await arrived(any_kafka.address, unique, load.expected)
    assert await bridge.end(signal.SIGTERM) == 0
    load.close()


@pytest.mark.parametrize("broker", ["mosquitto", "own_mqtt"])
async def test_two_bridges_share_and_one_is_killed(broker, request, kafka_broker, unique):
    address = request.getfixturevalue(broker).address
    kafka = kafka_broker.address
    load = Load(address, unique)
    mine = BridgeSettings(
        mqtt=address, kafka=kafka, client_id=f"{unique}-a", share=unique, profile="embedded"
    )
    other = options(address, kafka, f"{unique}-b", "--share", unique, "--metrics-port", "0")
    bridge = Bridge(mine)
    running = asyncio.create_task(bridge.run())
    killed = await Process(*other).start()
    await load.publish(200, pause=0)
    await arrived(kafka, unique, load.expected)
    url = re.search(r"http://\S+", "".join(killed.log))
    assert url is not None
    body = (await asyncio.to_thread(urllib.request.urlopen, url.group())).read().decode()
    theirs = re.search(r'bridge_messages_total\{kind="telemetry"\} (\S+)', body)
    assert theirs is not None
    handled = bridge.metrics.messages.labels("telemetry")._value.get()
    assert handled + float(theirs.group(1)) == 200
    assert min(handled, float(theirs.group(1))) > 50
    assert 'rigcanary_build_info{process="bridge"' in body

    publishing = asyncio.create_task(load.publish(MESSAGES, 200))
    await asyncio.sleep(0.2)
    await killed.end(signal.SIGKILL)
    await publishing
    again = await Process(*other).start()
    await arrived(kafka, unique, load.expected)
    assert await again.end(signal.SIGTERM) == 0
    load.close()
    bridge.stop()
    await asyncio.wait_for(running, 10)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--mqtt", "nowhere"], "nowhere"),
        (["--profile", "other"], "profile"),
        (["--share", "a/b"], "share"),
        (["--config", "/none.toml"], "none.toml"),
    ],
)
def test_wrong_settings_end_with_one_line(arguments, word, capsys):
    assert run(["bridge", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert word in err
    assert len(err.strip().splitlines()) == 1


def test_show_config_masks_the_password(capsys, monkeypatch):
    monkeypatch.setenv("RIGCANARY_BRIDGE_MQTT_PASSWORD", "hunter2")
    assert run(["bridge", "--show-config"]) == 0
    out, _ = capsys.readouterr()
    assert "hunter2" not in out
    assert orjson.loads(out)["mqtt_password"] == "**********"


async def test_a_taken_metrics_port_is_said(kafka_broker, own_mqtt):
    settings = BridgeSettings(
        mqtt=own_mqtt.address, kafka=kafka_broker.address,
        metrics_port=int(own_mqtt.address.split(":")[1]),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="metrics_port"):
        await Bridge(settings).run()
