"""Dead letters on Kafka: read, counted, sent again to where they came from, and marked."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import paho.mqtt.client as mqtt
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from paho.mqtt.enums import CallbackAPIVersion

from contract.errors import ConfigError, RigcanaryError
from contract.topics import DEAD_LETTER, MQTT_ROOT, RESENT
from stream.bridge_settings import BridgeSettings, split_address
from stream.dead_letters import Choice, Letter, Marks, parse
from stream.edge.backoff import backoff_seconds
from stream.edge.kafka_connection import connection_options
from stream.edge.kafka_read import read_records
from stream.edge.mqtt_link import login
from stream.edge.topics import ensure_topics

ATTEMPTS: Final = 5
MQTT_SECONDS: Final = 15.0
MAX_NAMES: Final = 1_000
"""Different topics and nodes that are counted by name; the rest is counted as ``other``."""
OTHER: Final = "other"


@dataclass
class Counts:
    """How many letters there are, by what; ``unreadable`` records are no letters."""

    letters: int = 0
    resent: int = 0
    unreadable: int = 0
    by_reason: "Counter[str]" = field(default_factory=Counter)
    by_topic: "Counter[str]" = field(default_factory=Counter)
    by_node: "Counter[str]" = field(default_factory=Counter)

    def add(self, letter: Letter, *, resent: bool) -> None:
        """Count one."""
        self.letters += 1
        self.resent += resent
        for counter, name in (
            (self.by_reason, letter.reason),
            (self.by_topic, letter.topic),
            (self.by_node, letter.node or "unknown"),
        ):
            counter[name if name in counter or len(counter) < MAX_NAMES else OTHER] += 1


@dataclass
class Resent:
    """What a run of :meth:`DeadLetters.resend` did; ``sent`` counts letters, once each."""

    sent: int = 0
    sent_before: int = 0
    not_whole: int = 0
    left: int = 0
    unreadable: int = 0

    def summary(self) -> dict[str, int]:
        """For ``--json``."""
        return asdict(self)


class DeadLetters:
    """The dead letters of one cluster, reached as the bridge reaches it."""

    def __init__(self, settings: BridgeSettings) -> None:
        """Nothing is connected yet.

        Raises:
            ConfigError: when a certificate file cannot be used.
        """
        self._settings = settings
        self._options = connection_options(settings)
        self.unreadable = 0

    async def marks(self) -> Marks:
        """Which letters were sent again.

        Raises:
            RigcanaryError: when Kafka cannot be reached, or there are too many marks.
        """
        marks = Marks()
        admin = AIOKafkaAdminClient(**self._options)
        try:
            await admin.start()
            present = RESENT in await admin.list_topics()
        except (KafkaError, OSError) as error:
            raise RigcanaryError(f"--kafka {self._settings.kafka}: {error}") from error
        finally:
            await admin.close()
        if present:
            async for record in read_records(self._options, RESENT):
                if record.value is None:
                    continue
                marks.read(record.value)
                if marks.full:
                    raise RigcanaryError(
                        f"{RESENT} has more than {marks.limit} marks; "
                        "shorten its retention.ms or make the topic anew"
                    )
        return marks

    async def read(self, choice: Choice) -> AsyncIterator[Letter]:
        """The letters that are meant, per partition in order, one at a time.

        Raises:
            ConfigError: when there is no dead-letter topic.
            RigcanaryError: when Kafka cannot be reached.
        """
        async for record in read_records(self._options, DEAD_LETTER):
            if record.value is None:
                continue
            letter = parse(record.partition, record.offset, record.value)
            if letter is None:
                self.unreadable += 1
            elif choice.takes(letter):
                yield letter

    async def resend(self, choice: Choice, *, limit: int, again: bool) -> Resent:
        """Send at most ``limit`` chosen letters again, each marked as soon as it was taken.

        A letter that is marked is left out unless ``again``. Killed between the two, a letter
        may go out a second time; a telemetry message counts once whatever is sent.

        Raises:
            ConfigError: when there are no dead letters, or a broker's address is wrong.
            RigcanaryError: when a broker cannot be reached or refuses a letter.
        """
        result = Resent()
        marks = await self.marks()
        out = _Out(self._settings, self._options)
        try:
            await out.start()
            async for letter in self.read(choice):
                if marks.has(letter) and not again:
                    result.sent_before += 1
                elif not letter.whole:
                    result.not_whole += 1
                elif result.sent >= limit or marks.full:
                    result.left += 1
                else:
                    await out.send(letter)
                    await out.to_kafka(RESENT, marks.add(letter, _now_ms()), None, None)
                    result.sent += 1
        finally:
            await out.stop()
        result.unreadable = self.unreadable
        return result


class _Out:
    """Where letters go: Kafka, and MQTT once one needs it."""

    def __init__(self, settings: BridgeSettings, options: dict[str, Any]) -> None:
        self._settings = settings
        self._options = options
        self._producer: Any = None
        self._mqtt: mqtt.Client | None = None
        self._rng = random.Random()

    async def start(self) -> None:
        where = f"--kafka {self._settings.kafka}"
        admin = AIOKafkaAdminClient(**self._options)
        try:
            await admin.start()
            await ensure_topics(
                admin,
                1,
                self._settings.replication_factor,
                [RESENT],
                min_insync=self._settings.min_insync_replicas,
            )
        except (KafkaError, OSError) as error:
            raise RigcanaryError(f"{where}: {error}") from error
        finally:
            await admin.close()
        batch = 1 if self._settings.profile == "embedded" else 16_384
        producer = AIOKafkaProducer(**self._options, acks="all", max_batch_size=batch)
        try:
            await producer.start()
        except (KafkaError, OSError) as error:
            await producer.stop()
            raise RigcanaryError(f"{where}: {error}") from error
        self._producer = producer

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        if self._mqtt is not None:
            self._mqtt.disconnect()
            await asyncio.to_thread(self._mqtt.loop_stop)

    async def send(self, letter: Letter) -> None:
        if letter.over_mqtt:
            await asyncio.to_thread(self._publish, letter)
            return
        # The worker files a letter in the partition that its record came from.
        partitions = await self._producer.partitions_for(letter.topic)
        partition = letter.partition if letter.partition in partitions else None
        key = letter.node.encode() if letter.node is not None else None
        await self.to_kafka(letter.topic, letter.record(), key, partition)

    async def to_kafka(
        self, topic: str, value: bytes, key: bytes | None, partition: int | None
    ) -> None:
        for attempt in range(ATTEMPTS):
            try:
                await self._producer.send_and_wait(topic, value, key=key, partition=partition)
                return
            except (KafkaError, OSError) as error:
                if attempt == ATTEMPTS - 1:
                    why = str(error) or type(error).__name__
                    raise RigcanaryError(
                        f"Kafka does not take a record of {topic}: {why}"
                    ) from error
                await asyncio.sleep(backoff_seconds(attempt, self._rng))

    def _publish(self, letter: Letter) -> None:
        client = self._mqtt or self._connect()
        try:
            info = client.publish(letter.topic, letter.payload, qos=1)
            info.wait_for_publish(MQTT_SECONDS)
            done = info.is_published()
        except (RuntimeError, ValueError) as error:
            raise RigcanaryError(f"letter {letter.place} cannot be published: {error}") from error
        if not done:
            raise RigcanaryError(
                f"letter {letter.place}: the MQTT broker {self._settings.mqtt} took it not within "
                f"{MQTT_SECONDS:.0f} s; run the same command again"
            )

    def _connect(self) -> mqtt.Client:
        # A client id of its own: the bridge's would take its session away from it.
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        login(client, self._settings)
        host, port = split_address(self._settings.mqtt)
        try:
            client.connect(host, port, self._settings.mqtt_keepalive_seconds)
        except OSError as error:
            raise ConfigError(
                f"--mqtt {self._settings.mqtt} cannot be reached ({error}); letters that came by "
                f"{MQTT_ROOT}/… are sent again there"
            ) from error
        client.loop_start()
        self._mqtt = client
        return client


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
