"""Puts a command on ``rigcanary.commands``, where the node's own partition is read."""

from typing import Any

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from contract.errors import RigcanaryError
from contract.topics import COMMANDS, node_key
from stream.edge.bridge_packer import partition_of


async def send_command(kafka: str, value: dict[str, Any], *, every_partition: bool) -> None:
    """Send and wait until Kafka has it.

    Raises:
        RigcanaryError: when Kafka cannot be reached, or has no such topic.
    """
    servers = [address.strip() for address in kafka.split(",")]
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", request_timeout_ms=10_000)
    try:
        await producer.start()
        count = len(await producer.partitions_for(COMMANDS))
        key = node_key(value["site"], value.get("node", "")).encode()
        wanted = range(count) if every_partition else (partition_of(key, count),)
        for partition in wanted:
            await producer.send_and_wait(
                COMMANDS, orjson.dumps(value), key=key, partition=partition
            )
    except (KafkaError, OSError) as error:
        raise RigcanaryError(
            f"--kafka {kafka}: {error}; is it running, and has a worker run there?"
        ) from error
    finally:
        await producer.stop()
