"""Reading a Kafka topic from its beginning to its end, without a consumer group."""

from collections.abc import AsyncIterator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from contract.errors import ConfigError, RigcanaryError

MAX_RECORDS: Final = 2_000
WAIT_MS: Final = 500


async def read_topic(kafka: str, topic: str) -> AsyncIterator[bytes]:
    """Values of a topic, per partition in order, up to where it ended when reading began.

    Raises:
        ConfigError: when the topic is absent.
        RigcanaryError: when Kafka cannot be reached.
    """
    async for record in read_records(kafka, topic):
        if record.value is not None:
            yield record.value


async def read_records(kafka: str, topic: str) -> AsyncIterator[Any]:
    """Records of a topic as :func:`read_topic` reads them, with key and partition.

    The end is the high watermark that fetches report: Tansu's end offsets are too low.

    Raises:
        ConfigError: when the topic is absent.
        RigcanaryError: when Kafka cannot be reached.
    """
    servers = [address.strip() for address in kafka.split(",")]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        tps = [TopicPartition(topic, p) for p in await _partitions(servers, topic, kafka)]
        await consumer.start()
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends: dict[Any, int] = {}
        while not await _reached(consumer, tps, ends):
            fetched = await consumer.getmany(timeout_ms=WAIT_MS, max_records=MAX_RECORDS)
            for records in fetched.values():
                for record in records:
                    yield record
    except (KafkaError, OSError) as error:
        raise RigcanaryError(f"--kafka {kafka}: {error}") from error
    finally:
        await consumer.stop()


async def _reached(consumer: Any, tps: list[Any], ends: dict[Any, int]) -> bool:
    """Whether every partition is read up to the first watermark that was seen of it."""
    for tp in tps:
        mark = consumer.highwater(tp)
        if mark is not None:
            ends.setdefault(tp, mark)
    if len(ends) < len(tps):
        return False
    return all([await consumer.position(tp) >= end for tp, end in ends.items()])


async def _partitions(servers: list[str], topic: str, kafka: str) -> list[int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    try:
        await admin.start()
        if topic not in await admin.list_topics():
            raise ConfigError(f"--kafka {kafka} has no topic {topic}; has a worker run there?")
        (found,) = await admin.describe_topics([topic])
        return sorted(p["partition"] for p in found["partitions"])
    finally:
        await admin.close()
