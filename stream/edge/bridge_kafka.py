"""The bridge's Kafka side: topics made where absent, records delivered or kept trying."""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.structs import RecordMetadata

from contract.errors import RigcanaryError
from contract.topics import TELEMETRY
from stream.bridge_settings import BridgeSettings
from stream.edge.backoff import backoff_seconds
from stream.edge.bridge_metrics import BridgeMetrics
from stream.edge.bridge_packer import Outgoing, split
from stream.edge.kafka_connection import connection_options
from stream.edge.topics import ensure_topics

log = logging.getLogger("rigcanary.bridge")

_Outcome = tuple[Outgoing, Exception | None]
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class BrokerForgot(RigcanaryError):
    """Offsets went back: the broker lost its log, so the record is delivered again.

    Tansu, which keeps all in memory, acknowledges records of a topic that it has forgotten and
    drops them when the topic is made anew.
    """


class KafkaOutlet:
    """Delivers records with ``acks=all``.

    Start and every delivery retry until they succeed or the task is cancelled; this is said
    once.
    """

    def __init__(self, settings: BridgeSettings, metrics: BridgeMetrics) -> None:
        """Nothing is connected yet; call inside the event loop.

        Raises:
            ConfigError: when the certificate authority's file cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._producer: Any = None
        self._rng = random.Random()
        self._away = False
        self._offsets: dict[tuple[str, int], int] = {}
        self._connection = connection_options(settings)

    async def start(self) -> None:
        """Connect and make sure that the topics exist."""
        attempt = 0
        while True:
            try:
                await self._ensure_topics()
                producer_options: dict[str, Any] = {
                    "acks": "all",
                    "client_id": self._settings.client_id,
                }
                if self._settings.compression != "none":
                    producer_options["compression_type"] = self._settings.compression
                # One record is one batch on the embedded broker; elsewhere 1 MB batches let
                # a partition's records of one moment travel together.
                batch = 1 if self._settings.profile == "embedded" else 1_000_000
                producer = AIOKafkaProducer(
                    **self._connection, **producer_options, max_batch_size=batch
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
                self._metrics.connected.labels("kafka").set(1)
                log.info("Kafka %s: connected", self._settings.kafka)
                self._back()
                return
            except (KafkaError, OSError) as error:
                await self._pause(attempt, error)
                attempt += 1

    async def _ensure_topics(self) -> None:
        admin = AIOKafkaAdminClient(**self._connection)
        try:
            await admin.start()
            s = self._settings
            absent = await ensure_topics(
                admin, s.partitions, s.replication_factor, min_insync=s.min_insync_replicas
            )
            if absent:
                log.info("Kafka: created %s", ", ".join(absent))
        finally:
            await admin.close()

    async def partitions(self) -> int:
        """How many partitions the telemetry topic has, by the cluster's (cached) metadata."""
        attempt = 0
        while True:
            try:
                return len(await self._producer.partitions_for(TELEMETRY))
            except (KafkaError, OSError) as error:
                await self._pause(attempt, error)
                attempt += 1

    async def deliver(self, records: Sequence[Outgoing]) -> None:
        """Return when Kafka has every record.

        Their order per partition is kept, except that a record that failed comes after those
        that did not.
        """
        began = time.monotonic()
        pending, attempt = list(records), 0
        while pending:
            groups: dict[tuple[str, object], list[Outgoing]] = defaultdict(list)
            for record in pending:
                place = record.key if record.partition is None else record.partition
                groups[record.topic, place].append(record)
            results = await asyncio.gather(*(self._send(group) for group in groups.values()))
            pending = []
            failure: Exception | None = None
            for record, error in (pair for group in results for pair in group):
                if error is None:
                    self._metrics.delivered(record)
                elif isinstance(error, _TOO_LARGE):
                    pending.extend(split(record))
                else:
                    pending.append(record)
                    failure = error
            if failure is not None:
                await self._pause(attempt, failure)
                attempt += 1
                await self._repair()
        self._back()
        self._metrics.produce_seconds.observe(time.monotonic() - began)

    async def _send(self, group: list[Outgoing]) -> list[_Outcome]:
        """Send records of one partition in order; each with the error it met."""
        outcome: list[_Outcome] = []
        futures = []
        for record in group:
            try:
                future = await self._producer.send(
                    record.topic, record.value, key=record.key, partition=record.partition
                )
                futures.append((record, future))
            except (KafkaError, OSError) as error:
                outcome.append((record, error))
                if not isinstance(error, _TOO_LARGE):
                    outcome.extend((later, error) for later in group[len(futures) + len(outcome) :])
                    break
        for record, future in futures:
            try:
                self._check_offset(await future)
                outcome.append((record, None))
            except (KafkaError, OSError, BrokerForgot) as error:
                outcome.append((record, error))
        return outcome

    def _check_offset(self, place: RecordMetadata) -> None:
        where = (place.topic, place.partition)
        before = self._offsets.get(where, -1)
        self._offsets[where] = place.offset
        if place.offset <= before:
            raise BrokerForgot(
                f"{place.topic}/{place.partition} went back from offset {before} to {place.offset}"
            )

    async def _repair(self) -> None:
        # A broker that keeps nothing on disk comes back without its topics.
        try:
            await self._ensure_topics()
        except (KafkaError, OSError) as error:
            log.debug("Kafka topics cannot be looked at yet: %s", error)

    async def _pause(self, attempt: int, error: BaseException) -> None:
        if not self._away:
            self._away = True
            log.warning(
                "Kafka %s: %s; holding messages and trying again",
                self._settings.kafka,
                str(error) or type(error).__name__,
            )
        self._metrics.connected.labels("kafka").set(0)
        self._metrics.retries.inc()
        await asyncio.sleep(backoff_seconds(attempt, self._rng))

    def _back(self) -> None:
        if self._away:
            self._away = False
            log.info("Kafka %s: answers again", self._settings.kafka)
        self._metrics.connected.labels("kafka").set(1)

    async def stop(self) -> None:
        """Close the producer; gives up after half a second when Kafka is away."""
        if self._producer is None:
            return
        try:
            await asyncio.wait_for(self._producer.stop(), 0.5)
        except (TimeoutError, KafkaError, OSError) as error:
            log.debug("Kafka producer did not close cleanly: %r", error)
