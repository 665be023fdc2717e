"""The whole server side as real processes, with a predictor whose risk a test can foretell.

What the embedded Kafka forgets must not be missed: minute rows stay exact, and no decision is
made twice, over its planned new start, its crash, and a new start of everything.
"""

import asyncio
import dataclasses
import json
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from paho.mqtt.enums import CallbackAPIVersion

from contract.topics import DECISIONS, MINUTES, RISKS
from onebox import toml
from onebox.box import OneBox
from onebox.brokers import PARTITIONS
from onebox.child import ChildSpec
from onebox.parts import BoxSettings, Parts, choose_ports
from onebox.processes import Supervisor

FAKE_WORKER = Path(__file__).parents[1] / "support" / "fake_worker.py"
START = 1_767_225_600  # 2026-01-01, a full minute
NODES = ("rig001", "rig002", "rig003")
HOT = ("rig002", "card-1")
HOT_FROM = 45
SAMPLES_A_MINUTE = 6


class FakeWorkerParts(Parts):
    """The real worker process, but for its predictor."""

    def worker(self) -> ChildSpec:
        real = super().worker()
        options = dict(zip(real.argv[4::2], real.argv[5::2], strict=True))
        config = Path(options["--config"])
        values = tomllib.loads(config.read_text())
        values |= {
            "kafka": options["--kafka"],
            "profile": options["--profile"],
            "state": options["--state"],
            "web_port": int(options["--web-port"]),
        }
        toml.write(config, values)
        return dataclasses.replace(real, argv=(sys.executable, str(FAKE_WORKER), str(config)))


def make_box(state: Path, supervisor: Supervisor, **options: Any) -> OneBox:
    settings = BoxSettings(
        state=state,
        ports=choose_ports(mqtt=0, kafka=0, runner=0, web=0),
        runner_nodes={node: ["card-0", "card-1"] for node in NODES},
        min_renewal_seconds=0.0,
        **options,
    )
    box = OneBox(settings, supervisor)
    box.parts = FakeWorkerParts(settings)
    return box


def message(node: str, seq: int) -> dict[str, Any]:
    ts = START + seq * 60 / SAMPLES_A_MINUTE
    hot = ts >= START + 60 * HOT_FROM
    return {
        "schema": "rigcanary.telemetry/1",
        "site": "lab",
        "node": node,
        "boot_id": "boot",
        "seq": seq,
        "ts": ts,
        "interval_seconds": 60 / SAMPLES_A_MINUTE,
        "devices": [
            {
                "device": card,
                "index": i,
                "vendor": "test",
                "model": "test",
                "state": "ok",
                "temperature_celsius": 90.0 if hot and (node, card) == HOT else 50.0 + i,
            }
            for i, card in enumerate(("card-0", "card-1"))
        ],
    }


def publish(port: int, minutes: range) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = [
        client.publish(f"rigcanary/v1/lab/{node}/telemetry", json.dumps(message(node, seq)), qos=1)
        for seq in range(minutes.start * SAMPLES_A_MINUTE, minutes.stop * SAMPLES_A_MINUTE)
        for node in NODES
    ]
    for info in sent:
        info.wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


class Seen:
    """What came out on Kafka, over all brokers of the test; the last row of a minute counts."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str, int], int] = {}
        self.completeness: dict[tuple[str, str, int], float] = {}
        self.decisions: dict[str, dict[str, Any]] = {}

    async def read(self, address: str, until: Any, seconds: float = 60) -> None:
        """Read everything there is until ``until()`` says that it is enough."""
        consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [
                TopicPartition(t, p) for t in (MINUTES, RISKS, DECISIONS) for p in range(PARTITIONS)
            ]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            async with asyncio.timeout(seconds):
                while not until():
                    for batch in (await consumer.getmany(timeout_ms=300)).values():
                        for record in batch:
                            self._take(record.topic, json.loads(record.value))
        except TimeoutError:
            pytest.fail(f"not all came: {self.short()}; moves {self.moves()}")
        finally:
            await consumer.stop()

    def _take(self, topic: str, value: dict[str, Any]) -> None:
        if topic == DECISIONS:
            self.decisions[value["decision_id"]] = value
            return
        minute = (int(value["minute"]) - START) // 60
        for row in value["devices"]:
            key = (value["node"], row["device"], minute)
            if topic == MINUTES:
                self.samples[key] = row["samples"]
            else:
                self.completeness[key] = row["completeness"]

    def full_to(self, minute: int) -> bool:
        """Whether every row up to ``minute`` (exclusive) holds all its samples."""
        return all(
            self.samples.get((node, card, m)) == SAMPLES_A_MINUTE
            for node in NODES
            for card in ("card-0", "card-1")
            for m in range(minute)
        )

    def short(self) -> dict[tuple[str, int], Any]:
        """Minutes whose rows are missing or do not hold all their samples."""
        last = max((m for _, _, m in self.samples), default=0)
        return {
            (node, m): self.samples.get((node, "card-0", m))
            for node in NODES
            for m in range(last + 1)
            if self.samples.get((node, "card-0", m)) != SAMPLES_A_MINUTE
        }

    def moves(self) -> list[tuple[str, str]]:
        return [
            (d["data"]["node"], d["data"]["device"])
            for d in self.decisions.values()
            if d["type"] == "migration.requested" and not d["dry_run"]
        ]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_kafka_forgets_is_not_missed(tmp_path: Path) -> None:
    seen = Seen()
    async with Supervisor(tmp_path / "log") as supervisor:
        box = make_box(tmp_path / "state", supervisor, kafka_memory_bytes=2**40)
        await box.start()
        watching = asyncio.create_task(box.watch())
        await asyncio.to_thread(publish, box.settings.ports.mqtt, range(40))
        await seen.read(box.settings.kafka_address, lambda: seen.full_to(39))

        # Kafka is over its limit: planned new start; minute 39 was still open.
        box.settings = dataclasses.replace(box.settings, kafka_memory_bytes=1)
        while box.renewals == 0:
            await asyncio.sleep(0.1)
        box.settings = dataclasses.replace(box.settings, kafka_memory_bytes=2**40)
        while supervisor.children["bridge"].state != "ready" or box.renewing:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(publish, box.settings.ports.mqtt, range(40, 58))
        await seen.read(
            box.settings.kafka_address, lambda: seen.full_to(57) and seen.moves() == [HOT]
        )

        # It crashes; the tables come back from the journal.
        crashed = supervisor.children["kafka"].pid
        assert crashed is not None
        renewals = box.renewals
        os.kill(crashed, signal.SIGKILL)
        while box.renewals == renewals or box.renewing:
            assert not watching.done()
            await asyncio.sleep(0.1)
        await asyncio.to_thread(publish, box.settings.ports.mqtt, range(58, 64))
        await seen.read(
            box.settings.kafka_address, lambda: ("rig001", "card-0", 62) in seen.samples
        )
        watching.cancel()
        await box.stop()

    async with Supervisor(tmp_path / "log") as supervisor:
        again = make_box(tmp_path / "state", supervisor)
        await again.start()
        await asyncio.to_thread(publish, again.settings.ports.mqtt, range(64, 70))
        await seen.read(
            again.settings.kafka_address,
            lambda: all(
                (n, c, 68) in seen.completeness for n in NODES for c in ("card-0", "card-1")
            ),
        )
        await again.stop()
    # Minutes 57 and 58 were open when Kafka crashed; all others are whole.
    short = {m for (_, _, m), count in seen.samples.items() if count != SAMPLES_A_MINUTE and m < 69}
    assert short <= {57, 58}
    assert all(seen.completeness[n, c, 68] > 0.9 for n in NODES for c in ("card-0", "card-1"))
    assert seen.moves() == [HOT]
