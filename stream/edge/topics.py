"""Our topics on a Kafka cluster: created where absent, and seen to be there."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaConnectionError, TopicAlreadyExistsError, for_code

from contract.errors import RigcanaryError
from contract.topics import KAFKA_TOPICS
from stream.topic_settings import topic_config

LOOKS: Final = 50
LOOK_SECONDS: Final = 0.2
"""A broker learns of a topic a moment after the controller made it: ten seconds at most."""


async def replicas(admin: Any, wished: int | None) -> int:
    """Replicas of a new topic: ``wished``, or 3, or the number of brokers if they are fewer."""
    if wished is not None:
        return wished
    cluster = await admin.describe_cluster()
    return max(1, min(3, len(cluster["brokers"])))


async def ensure_topics(
    admin: Any,
    partitions: int,
    wished_replicas: int | None,
    names: Sequence[str] = KAFKA_TOPICS,
    *,
    min_insync: int | None = None,
) -> list[str]:
    """Create those of ``names`` that are absent; returns them.

    Raises:
        RigcanaryError: when Kafka refuses one.
        KafkaConnectionError: when it does not show them within some seconds.
    """
    present = set(await admin.list_topics())
    absent = [name for name in names if name not in present]
    if not absent:
        return []
    count = await replicas(admin, wished_replicas)
    try:
        answer = await admin.create_topics(
            [
                NewTopic(n, partitions, count, topic_configs=topic_config(n, min_insync))
                for n in absent
            ]
        )
    except TopicAlreadyExistsError:  # another process is faster
        answer = None
    for topic, code, *rest in answer.topic_errors if answer is not None else ():
        kind = for_code(code)
        if code != 0 and kind is not TopicAlreadyExistsError:
            why = f"{kind.__name__} {rest[0] if rest and rest[0] else ''}"
            raise RigcanaryError(
                f"Kafka does not create the topic {topic}: {why.strip()}; "
                "create it by hand, or give replication_factor"
            )
    for _ in range(LOOKS):
        if set(absent) <= set(await admin.list_topics()):
            return absent
        await asyncio.sleep(LOOK_SECONDS)
    raise KafkaConnectionError(f"created {', '.join(absent)}, but they do not appear")
