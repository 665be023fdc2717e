"""The bridge between real brokers: what goes in comes out, and is acknowledged only then."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import paho.mqtt.client as mqtt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from paho.mqtt.enums import CallbackAPIVersion

from contract.topics import DEAD_LETTER, EVENTS, TELEMETRY
from stream.bridge_settings import BridgeSettings
from stream.edge.bridge import Bridge
from stream.edge.bridge_packer import partition_of


def telemetry(site: str, node: str, seq: int, **extra: object) -> bytes:
    return orjson.dumps(
        {
            "schema": "rigcanary.telemetry/1",
            "site": site,
            "node": node,
            "boot_id": "b1",
            "seq": seq,
            "ts": time.time(),
            "interval_seconds": 5.0,
            "devices": [
                {"device": "GPU-1", "index": 0, "state": "ok", "temperature_celsius": 60.0}
            ],
            **extra,
        }
    )


class Publisher:
    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        self.client.max_queued_messages_set(0)
        self.client.max_inflight_messages_set(100)
        self.client.connect(host, int(port))
        self.client.loop_start()

    async def publish(self, topic: str, payload: bytes, retain: bool = False, qos: int = 1) -> None:
        info = self.client.publish(topic, payload, qos, retain)
        await asyncio.to_thread(info.wait_for_publish, 10)

    async def publish_all(self, messages: list[tuple[str, bytes]]) -> None:
        infos = [self.client.publish(t, p, 1) for t, p in messages]
        for info in infos:
            await asyncio.to_thread(info.wait_for_publish, 20)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


async def read_all(
    address: str, topic: str, wanted: Callable[[list], bool], seconds: float = 20
) -> list:
    """Records of a topic, from its beginning until ``wanted`` is true of them."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    await consumer.start()
    try:
        records: list = []
        deadline = time.monotonic() + seconds
        while not wanted(records):
            if time.monotonic() > deadline:
                raise AssertionError(f"only {len(records)} records of {topic}: {records[-3:]}")
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


def messages_of(records: list, site: str) -> list[dict]:
    return [m for r in records for m in orjson.loads(r.value)["messages"] if m["site"] == site]


@asynccontextmanager
async def running(settings: BridgeSettings) -> AsyncIterator[Bridge]:
    bridge = Bridge(settings)
    task = asyncio.create_task(bridge.run())
    try:
        await eventually(bridge.inbox.connected.is_set)
        yield bridge
    finally:
        bridge.stop()
        await asyncio.wait_for(task, 10)


async def eventually(check: Callable[[], bool], seconds: float = 20.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never true: {check}")


@pytest.fixture
def settings(mqtt_broker, kafka_broker, unique) -> BridgeSettings:
    return BridgeSettings(
        mqtt=mqtt_broker.address,
        kafka=kafka_broker.address,
        client_id=unique,
        profile="embedded",
    )


@pytest.fixture
def publisher(mqtt_broker):
    client = Publisher(mqtt_broker.address)
    yield client
    client.close()


async def test_telemetry_is_packed_by_partition_in_order(settings, publisher, unique):
    nodes = [f"rig{i:02d}" for i in range(6)]
    sent = [(n, s) for s in range(20) for n in nodes]
    async with running(settings) as bridge:
        await publisher.publish_all(
            [(f"rigcanary/v1/{unique}/{n}/telemetry", telemetry(unique, n, s)) for n, s in sent]
        )
        records = await read_all(
            settings.kafka, TELEMETRY, lambda r: len(messages_of(r, unique)) >= len(sent)
        )
        await eventually(lambda: bridge.inbox.held == 0)
    mine = [r for r in records if messages_of([r], unique)]
    assert len(mine) < len(sent)
    got: dict[str, list[int]] = {}
    for record in mine:
        names = {m["node"] for m in messages_of([record], unique)}
        for name in names:
            assert record.partition == partition_of(f"{unique}/{name}".encode(), 4)
        assert record.key == (f"{unique}/{names.pop()}".encode() if len(names) == 1 else None)
        for m in messages_of([record], unique):
            got.setdefault(m["node"], []).append(m["seq"])
    assert got == {n: list(range(20)) for n in nodes}


async def test_our_partition_is_the_default_partitioner_s(kafka_broker, unique):
    producer = AIOKafkaProducer(bootstrap_servers=kafka_broker.address)
    await producer.start()
    try:
        for i in range(40):
            key = f"{unique}/rig{i}".encode()
            sent = await producer.send_and_wait(f"probe-{unique}", b"x", key=key)
            count = len(await producer.partitions_for(f"probe-{unique}"))
            assert sent.partition == partition_of(key, count)
    finally:
        await producer.stop()


async def test_events_and_status(settings, publisher, unique):
    event = orjson.dumps(
        {
            "schema": "rigcanary.event/1",
            "site": unique,
            "node": "r1",
            "boot_id": "b1",
            "seq": 3,
            "ts": time.time(),
            "device": "GPU-1",
            "type": "xid",
            "code": 79,
            "message": "m",
            "raw": "x",
        }
    )
    old = orjson.dumps({"state": "offline", "boot_id": "b0", "ts": time.time() - 60})
    new = orjson.dumps({"state": "online", "boot_id": "b1", "ts": time.time()})
    await publisher.publish(f"rigcanary/v1/{unique}/r1/status", old, retain=True)
    async with running(settings):
        await publisher.publish(f"rigcanary/v1/{unique}/r1/events", event)
        await publisher.publish(f"rigcanary/v1/{unique}/r1/status", new, retain=True)
        await publisher.publish(f"rigcanary/v1/{unique}/r1/status", b"", retain=True)
        found = await read_all(settings.kafka, EVENTS, lambda r: len(mine(r, unique)) >= 3)
    events = mine(found, unique)
    assert {r.key for r in events} == {f"{unique}/r1".encode()}
    assert len({r.partition for r in events}) == 1
    values = [orjson.loads(r.value) for r in events]
    kinds = {v["type"]: v for v in values}  # two subscriptions: their order is free
    assert kinds.keys() == {"node_offline", "xid", "node_online"}
    assert kinds["node_offline"]["retained"] is True
    assert kinds["node_online"]["retained"] is False
    assert kinds["xid"] == orjson.loads(event)
    assert kinds["node_online"]["boot_id"] == "b1"
    assert kinds["node_online"]["device"] is None


def mine(records: list, site: str) -> list:
    return [r for r in records if orjson.loads(r.value).get("site") == site]


async def test_bad_input_goes_to_the_dead_letters_and_the_rest_goes_on(settings, publisher, unique):
    topic = f"rigcanary/v1/{unique}/r1/telemetry"
    nan = json.dumps({**orjson.loads(telemetry(unique, "r1", 7)), "note": float("nan")}).encode()
    bad = {
        "not-json": b"{nonsense",
        "schema": b'{"schema": "other/1"}',
        "missing-key": b'{"schema": "rigcanary.telemetry/1"}',
        "topic": telemetry(unique, "r2", 1),
        "too-large": b" " * 300_000,
        "future": telemetry(unique, "r1", 1, ts=time.time() + 3600),
        "bad-value": telemetry(unique, "r1", -1),
    }
    async with running(settings) as bridge:
        for payload in bad.values():
            await publisher.publish(topic, payload)
        await publisher.publish(f"rigcanary/v1/{unique}/r1/status", b"\xff\xfe")
        await publisher.publish(topic, nan)
        records = await read_all(settings.kafka, TELEMETRY, lambda r: bool(messages_of(r, unique)))
        letters = await read_all(
            settings.kafka, DEAD_LETTER, lambda r: len(dead(r, unique)) >= len(bad) + 1
        )
        await eventually(lambda: bridge.inbox.held == 0)
    assert messages_of(records, unique)[0]["note"] is None
    found = {v["reason"]: v for v in dead(letters, unique) if v["topic"] == topic}
    assert found.keys() == bad.keys()
    assert orjson.loads(letters[0].value).keys() == {
        "reason",
        "detail",
        "topic",
        "received_at",
        "payload_base64",
    }


def dead(records: list, site: str) -> list[dict]:
    values = [orjson.loads(r.value) for r in records]
    return [v for v in values if f"/{site}/" in v["topic"]]


async def test_kafka_away_holds_back_and_loses_nothing(own_mqtt, own_kafka, unique):
    settings = BridgeSettings(
        mqtt=own_mqtt.address, kafka=own_kafka.address, client_id=unique, profile="embedded"
    )
    publisher = Publisher(own_mqtt.address)
    topic = f"rigcanary/v1/{unique}/r1/telemetry"
    own_kafka.stop()
    async with running(settings) as bridge:
        await publisher.publish_all([(topic, telemetry(unique, "r1", s)) for s in range(250)])
        await eventually(lambda: bridge.inbox.held >= 90)
        await asyncio.sleep(0.3)
        assert bridge.inbox.held <= 100  # the broker's window bounds it
        own_kafka.start()
        records = await read_all(
            settings.kafka, TELEMETRY, lambda r: len(messages_of(r, unique)) >= 250
        )
        await eventually(lambda: bridge.inbox.held == 0)
        own_kafka.stop()  # it forgets its topics
        await publisher.publish_all([(topic, telemetry(unique, "r1", s)) for s in range(250, 300)])
        own_kafka.start()
        await eventually(lambda: bridge.inbox.held == 0)
        again = await read_all(
            settings.kafka, TELEMETRY, lambda r: len(messages_of(r, unique)) >= 50, seconds=40
        )
    publisher.close()
    assert [m["seq"] for m in messages_of(records, unique)] == list(range(250))
    assert {m["seq"] for m in messages_of(again, unique)} >= set(range(250, 300))


async def test_stopping_without_kafka_leaves_the_messages_at_the_broker(
    own_mqtt, own_kafka, unique
):
    settings = BridgeSettings(
        mqtt=own_mqtt.address,
        kafka=own_kafka.address,
        client_id=unique,
        profile="embedded",
        stop_seconds=0.2,
    )
    publisher = Publisher(own_mqtt.address)
    topic = f"rigcanary/v1/{unique}/r1/telemetry"
    own_kafka.stop()
    async with running(settings) as bridge:
        await publisher.publish_all([(topic, telemetry(unique, "r1", s)) for s in range(30)])
        await eventually(lambda: bridge.inbox.held == 30)
    await publisher.publish_all([(topic, telemetry(unique, "r1", s)) for s in range(30, 60)])
    own_kafka.start()
    async with running(settings):
        records = await read_all(
            settings.kafka, TELEMETRY, lambda r: len(messages_of(r, unique)) >= 60
        )
    publisher.close()
    assert {m["seq"] for m in messages_of(records, unique)} == set(range(60))


async def test_mqtt_away_reconnects(own_mqtt, kafka_broker, unique):
    settings = BridgeSettings(
        mqtt=own_mqtt.address, kafka=kafka_broker.address, client_id=unique, profile="embedded"
    )
    own_mqtt.stop()
    bridge = Bridge(settings)
    task = asyncio.create_task(bridge.run())
    await asyncio.sleep(0.3)
    own_mqtt.start()
    await eventually(bridge.inbox.connected.is_set)
    own_mqtt.stop()
    await eventually(lambda: not bridge.inbox.connected.is_set())
    own_mqtt.start()
    await eventually(bridge.inbox.connected.is_set)
    publisher = Publisher(own_mqtt.address)
    await publisher.publish(f"rigcanary/v1/{unique}/r1/telemetry", telemetry(unique, "r1", 1))
    await read_all(settings.kafka, TELEMETRY, lambda r: bool(messages_of(r, unique)))
    publisher.close()
    bridge.stop()
    await asyncio.wait_for(task, 10)
    metric = bridge.metrics.registry.get_sample_value
    assert metric("rigcanary_bridge_mqtt_connections_total") == 2
