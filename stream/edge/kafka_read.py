"""Reading a Kafka topic from its beginning to its end, without a consumer group."""

from collections.abc import AsyncIterator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from contract.errors import ConfigError, RigcanaryError

MAX_RECORDS: Final = 2_000
WAIT_MS: Final = 500


def servers(kafka: str) -> dict[str, Any]:
    """Options of an aiokafka client for ``HOST:PORT[,HOST:PORT…]``."""
    return {"bootstrap_servers": [address.strip() for address in kafka.split(",")]}


async def read_topic(kafka: str, topic: str) -> AsyncIterator[bytes]:
    """Values of a topic; as :func:`read_records`, without the records that have none."""
    async for record in read_records(servers(kafka), topic):
        if record.value is not None:
            yield record.value


async def read_records(options: dict[str, Any], topic: str) -> AsyncIterator[Any]:
    """Records of a topic, per partition in order, up to where it ended when reading began.

    ``options`` are those of every aiokafka client. The end is the high watermark that fetches
    report: Tansu's end offsets are too low.

    Raises:
        ConfigError: when the topic is absent.
        RigcanaryError: when Kafka cannot be reached.
    """
    kafka = ",".join(options["bootstrap_servers"])
    consumer = AIOKafkaConsumer(**options, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        tps = [TopicPartition(topic, p) for p in await _partitions(options, topic, kafka)]
        await consumer.start()
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends: dict[Any, int] = {}
        while not await _reached(consumer, tps, ends):
            fetched = await consumer.getmany(timeout_ms=WAIT_MS, max_records=MAX_RECORDS)
            _note_ends(consumer, tps, ends)  # now: the reader may cause records
            for tp, records in fetched.items():
                for record in records:
                    if record.offset < ends.get(tp, record.offset + 1):
                        yield record
    except (KafkaError, OSError) as error:
        raise RigcanaryError(f"--kafka {kafka}: {error}") from error
    finally:
        await consumer.stop()


def _note_ends(consumer: Any, tps: list[Any], ends: dict[Any, int]) -> None:
    """Remember the first watermark that is seen of each partition."""
    for tp in tps:
        mark = consumer.highwater(tp)
        if mark is not None:
            ends.setdefault(tp, mark)


async def _reached(consumer: Any, tps: list[Any], ends: dict[Any, int]) -> bool:
    """Whether every partition is read up to its end."""
    _note_ends(consumer, tps, ends)
    if len(ends) < len(tps):
        return False
    return all([await consumer.position(tp) >= end for tp, end in ends.items()])


async def _partitions(options: dict[str, Any], topic: str, kafka: str) -> list[int]:
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        if topic not in await admin.list_topics():
            raise ConfigError(f"--kafka {kafka} has no topic {topic}; has a worker run there?")
        (found,) = await admin.describe_topics([topic])
        return sorted(p["partition"] for p in found["partitions"])
    finally:
        await admin.close()
