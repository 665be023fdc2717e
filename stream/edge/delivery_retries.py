"""Follows ``rigcanary.deliveries`` for dead letters that a person wants sent again.

The topic itself is the memory: a retry is open while it is the last record of its delivery. Read
from its beginning without a group, so nothing is to be committed, and a worker that is killed in
between finds the same retries again. The outbox takes one twice without harm.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from contract.topics import DELIVERIES
from stream.deliveries import DeadLetters, Key, Stored, read_record

log = logging.getLogger(__name__)

MAX_RECORDS: Final = 500
WAIT_MS: Final = 1_000
RECONNECT_SECONDS: Final = 30.0


class Retries:
    """Hands every open retry to ``act`` once; one that answers False is asked again later.

    ``kafka`` are the options of every aiokafka client; ``ready()`` says whether the owner can
    take retries now.
    """

    def __init__(
        self,
        kafka: dict[str, Any],
        act: Callable[[Stored], Awaitable[bool]],
        ready: Callable[[], bool],
    ) -> None:
        self._kafka = kafka
        self._act = act
        self._ready = ready
        self._letters = DeadLetters()
        self._acted: dict[Key, Stored] = {}

    async def run(self, stopped: Callable[[], bool]) -> None:
        """Follow the topic until ``stopped()``; Kafka's absence is waited out."""
        while not stopped():
            consumer = AIOKafkaConsumer(
                **self._kafka,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            try:
                await consumer.start()
                self._letters, self._acted = DeadLetters(), {}
                await self._follow(consumer, stopped)
            except (KafkaError, OSError) as error:
                wait = RECONNECT_SECONDS * random.uniform(0.7, 1.3)
                log.warning("%s cannot be read (%s); again in %.0f s", DELIVERIES, error, wait)
                await asyncio.sleep(wait)
            finally:
                await consumer.stop()

    async def _follow(self, consumer: Any, stopped: Callable[[], bool]) -> None:
        tps = [
            TopicPartition(DELIVERIES, p) for p in consumer.partitions_for_topic(DELIVERIES) or ()
        ]
        if not tps:
            tps = [TopicPartition(DELIVERIES, 0)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        while not stopped():
            fetched = await consumer.getmany(timeout_ms=WAIT_MS, max_records=MAX_RECORDS)
            for records in fetched.values():
                for record in records:
                    stored = read_record(record.partition, record.key, record.value)
                    if stored is not None:
                        self._letters.take(stored)
            if self._ready():
                # With more to read, what looks open may be closed by a later record.
                marks = {tp: consumer.highwater(tp) for tp in tps}
                behind = {
                    tp.partition
                    for tp, mark in marks.items()
                    if mark is not None and await consumer.position(tp) < mark
                }
                await self._act_on_open(behind)

    async def _act_on_open(self, behind: set[int]) -> None:
        still = {stored.key: stored for stored in self._letters.retries()}
        self._acted = {key: done for key, done in self._acted.items() if still.get(key) is done}
        for key, stored in still.items():
            waits = stored.partition in behind or key in self._acted
            if not waits and await self._act(stored):
                self._acted[key] = stored
