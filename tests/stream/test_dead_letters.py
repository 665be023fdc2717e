"""Dead letters listed and sent again, on the embedded Kafka and on Apache's."""

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import orjson
import paho.mqtt.client as mqtt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion

from contract.deadletter import MAX_DEAD_BYTES, REASONS, dead_letter
from contract.topics import DEAD_LETTER, EVENTS, RESENT, TELEMETRY
from rigcanary.cli import run
from stream.dead_letters import Choice, Letter, Marks, parse
from stream.edge.dead_letters import MAX_NAMES, OTHER, Counts
from stream.edge.kafka_read import read_records

NOW_MS = 1_767_225_600_000
MINE = "rigcanary/v1/lab/rig1/telemetry"


def letter(reason: str, topic: str, payload: bytes, at_ms: int = NOW_MS) -> bytes:
    return dead_letter(reason, f"why {reason}", topic, at_ms, payload)


async def produce(kafka: str, values: list[tuple[int, bytes]]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(t, 2, 1) for t in (DEAD_LETTER, TELEMETRY, EVENTS)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=kafka, max_batch_size=1)
    await producer.start()
    for partition, value in values:
        await producer.send_and_wait(DEAD_LETTER, value, partition=partition)
    await producer.stop()


def values_of(kafka: str, topic: str) -> list[tuple[int, bytes]]:
    async def read() -> list[tuple[int, bytes]]:
        options = {"bootstrap_servers": [kafka]}
        return [(r.partition, r.value) async for r in read_records(options, topic)]

    return asyncio.run(read())


@pytest.fixture
def published(own_mqtt: Any) -> Iterator["queue.Queue[tuple[str, bytes, bool]]"]:
    """What is published on our MQTT topics."""
    found: queue.Queue[tuple[str, bytes, bool]] = queue.Queue()
    subscribed: queue.Queue[None] = queue.Queue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
    client.on_message = lambda _c, _u, m: found.put((m.topic, bytes(m.payload), m.retain))
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.connect("127.0.0.1", own_mqtt.port)
    client.subscribe("rigcanary/v1/#", 1)
    client.loop_start()
    subscribed.get(timeout=20)
    yield found
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize(
    "any_kafka",
    ["own_kafka", pytest.param("own_apache_kafka", marks=[pytest.mark.slow])],
    indirect=True,
)
@pytest.mark.timeout(400)
def test_letters_are_listed_sent_again_once_and_marked(any_kafka, own_mqtt, published, capsys):
    kafka = any_kafka.address
    single = orjson.dumps({"site": "lab", "node": "rig2", "seq": 7})
    asyncio.run(
        produce(
            kafka,
            [
                (0, letter("schema", MINE, b'{"schema": 1}')),
                (1, letter("late", TELEMETRY, single, NOW_MS + 1_000)),
                (1, letter("record", TELEMETRY, b'{"messages": 1}')),
                (0, letter("bad-value", EVENTS, b'{"type": "party"}')),
                (0, letter("too-large", MINE, b"x" * (MAX_DEAD_BYTES + 5))),
                (0, b"no letter"),
                (0, letter("topic", "rigcanary/v1/\x1b[31m/x", b"\x1b[31m")),
            ],
        )
    )

    def command(*words: str) -> dict[str, Any]:
        assert run(["dead-letters", *words, "--kafka", kafka, "--json"]) == 0
        found: dict[str, Any] = orjson.loads(capsys.readouterr().out)
        return found

    listed = command("list", "--payload")
    assert (listed["letters"], listed["resent"], listed["unreadable"]) == (6, 0, 1)
    assert listed["by_reason"]["late"] == 1
    assert listed["by_node"] == {"lab/rig1": 2, "lab/rig2": 1, "unknown": 3}
    assert listed["newest"][-1]["id"] == "1:0"
    assert listed["newest"][-1]["payload"] == single.decode()
    assert [n["reason"] for n in command("list", "--node", "rig2")["newest"]] == ["late"]
    assert command("list", "--since", "2026-01-01T00:00:01Z")["letters"] == 1
    assert command("list", "--limit", "2")["newest"].__len__() == 2

    assert run(["dead-letters", "list", "--kafka", kafka]) == 0
    assert "\x1b" not in capsys.readouterr().out  # nothing of a stranger's steers the terminal
    assert run(["dead-letters", "resend", "--kafka", kafka]) == 2
    assert "--all" in capsys.readouterr().err
    assert values_of(kafka, TELEMETRY) == []

    send = ("resend", "--mqtt", own_mqtt.address, "--profile", any_kafka.profile)
    one = command(*send, "1:0")
    assert (one["sent"], one["sent_before"]) == (1, 0)
    assert values_of(kafka, TELEMETRY) == [(1, b'{"messages":[' + single + b"]}")]
    again = command(*send, "--reason", "late")
    assert (again["sent"], again["sent_before"]) == (0, 1)
    rest = command(*send, "--reason", "schema", "--topic", TELEMETRY)
    assert rest["sent"] == 0  # both must hold
    rest = command(*send, "--topic", TELEMETRY, "--topic", EVENTS, "--topic", MINE)
    assert rest == {"sent": 3, "sent_before": 1, "not_whole": 1, "left": 0, "unreadable": 1}
    assert (1, b'{"messages": 1}') in values_of(kafka, TELEMETRY)
    assert values_of(kafka, EVENTS) == [(0, b'{"type": "party"}')]
    assert published.get(timeout=20) == (MINE, b'{"schema": 1}', False)
    assert published.empty()
    assert command("list")["resent"] == 4
    assert len(values_of(kafka, RESENT)) == 4
    assert command(*send, "1:0", "--again")["sent"] == 1


def test_without_brokers_it_ends_in_one_line(capsys, free_port, own_kafka):
    nowhere = f"127.0.0.1:{free_port()}"
    assert run(["dead-letters", "list", "--kafka", nowhere]) == 1
    assert nowhere in capsys.readouterr().err
    assert run(["dead-letters", "list", "--kafka", own_kafka.address]) == 2
    assert DEAD_LETTER in capsys.readouterr().err
    asyncio.run(produce(own_kafka.address, [(0, letter("schema", MINE, b"{}"))]))
    words = ["resend", "--all", "--kafka", own_kafka.address, "--mqtt", nowhere]
    assert run(["dead-letters", *words, "--profile", "embedded"]) == 2
    error = capsys.readouterr().err
    assert nowhere in error
    assert len(error.strip().splitlines()) == 1
    for wrong in (["list", "--reason", "rain"], ["resend", "3"], ["list", "--since", "soon"]):
        assert run(["dead-letters", *wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


@given(
    st.sampled_from(sorted(REASONS)), st.text(max_size=30), st.binary(max_size=300),
    st.integers(0, 4_000_000_000_000),
)  # fmt: skip
def test_what_was_filed_is_read_again(reason, topic, payload, at_ms):
    topic = topic.encode("utf-8", "replace").decode()
    found = parse(2, 5, dead_letter(reason, "d", topic, at_ms, payload))
    assert found is not None
    assert (found.place, found.reason, found.topic) == ("2:5", reason, topic)
    assert (found.payload, found.received_ms) == (payload, at_ms)


@given(st.one_of(st.binary(max_size=50), st.builds(orjson.dumps, st.dictionaries(
    st.sampled_from(["reason", "detail", "topic", "received_at", "payload_base64"]),
    st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=5).filter(str.isascii)),
))))  # fmt: skip
def test_what_is_no_letter_is_none(value):
    assert parse(0, 0, value) is None or b"payload_base64" in value


def made(offset: int, value: bytes) -> Letter:
    found = parse(0, offset, value)
    assert found is not None
    return found


def test_a_mark_holds_for_its_own_letter_only():
    first = made(3, letter("late", TELEMETRY, b"{}"))
    remembered = Marks(limit=2)
    marks = Marks(limit=2)
    marks.read(remembered.add(first, NOW_MS))
    for other in (b"", b"[]", b'{"partition": "x"}', b"null"):
        marks.read(other)
    assert marks.has(first)
    assert remembered.has(first)
    assert not marks.full
    # The same place of a topic that was made anew.
    assert not marks.has(made(3, letter("late", TELEMETRY, b"{ }")))
    marks.add(made(4, letter("late", TELEMETRY, b"{}")), NOW_MS)
    assert marks.full


def test_a_choice_without_words_takes_all_and_counts_stay_bounded():
    assert Choice().everything
    assert not Choice(until_ms=1).everything
    counts = Counts()
    for n in range(MAX_NAMES + 50):
        one = made(n, letter("schema", f"rigcanary/v1/lab/r{n}/telemetry", b""))
        assert Choice().takes(one)
        counts.add(one, resent=False)
    assert len(counts.by_node) == MAX_NAMES + 1
    assert counts.by_node[OTHER] == 50
