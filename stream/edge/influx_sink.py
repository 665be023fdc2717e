"""Kafka → InfluxDB 2 in a process of its own (contracts section 9; decision 17).

Kafka is the buffer: offsets are committed after InfluxDB has the points, and while it has not
nothing more is fetched. The worker never waits for it. A record may be written twice after a
kill; a point with the same series and time replaces the first.
"""

import asyncio
import contextlib
import itertools
import logging
import platform
import random
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from contract.deadletter import dead_letter
from contract.errors import ConfigError, RigcanaryError
from contract.topics import DEAD_LETTER, DECISIONS, EVENTS, MINUTES, RISKS
from stream.edge.backoff import backoff_seconds
from stream.edge.bridge_metrics import package_version
from stream.edge.influx_writer import InfluxAway, InfluxWriter, Line, Refused
from stream.edge.kafka_connection import connection_options
from stream.edge.line_protocol import LINES
from stream.influx_settings import InfluxSinkSettings

log = logging.getLogger("rigcanary.influx")

TABLES: Final = {MINUTES: "minutes", RISKS: "risks", DECISIONS: "decisions", EVENTS: "events"}
_TOPICS: Final = {table: topic for topic, table in TABLES.items()}
POLL_MS: Final = 500
START_ATTEMPTS: Final = 10
"""Then the process ends: whoever supervises it starts it again."""


class SinkMetrics:
    """The sink's own metrics (contracts section 8)."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.points = Counter(
            "rigcanary_influx_points", "Points, by table and outcome", ["table", "outcome"],
            registry=r,
        )  # fmt: skip
        self.records = Counter(
            "rigcanary_influx_unusable_records", "Kafka records that are no such value", ["table"],
            registry=r,
        )  # fmt: skip
        self.retries = Counter(
            "rigcanary_influx_retries", "Writes that were tried again", registry=r
        )
        self.connected = Gauge(
            "rigcanary_influx_connected", "1 while InfluxDB takes points", registry=r
        )
        self.lag = Gauge(
            "rigcanary_influx_lag_records", "Records read by nobody yet", ["topic"], registry=r
        )
        build = Gauge(
            "rigcanary_build_info", "1, with the version as label",
            ["version", "python", "process"], registry=r,
        )  # fmt: skip
        build.labels(package_version(), platform.python_version(), "influx-sink").set(1)


class InfluxSink:
    """One sink; :meth:`run` returns after :meth:`stop`."""

    def __init__(self, settings: InfluxSinkSettings, writer: InfluxWriter | None = None) -> None:
        """Nothing is connected yet.

        Raises:
            ConfigError: when a certificate's file cannot be used.
        """
        self._settings = settings
        self._options = connection_options(settings)
        self._writer = writer or InfluxWriter(settings.influx)
        self.metrics = SinkMetrics()
        self._stopping = asyncio.Event()
        self._rng = random.Random()
        self._away = False
        self._next: dict[Any, int] = {}
        self._consumer: Any = None
        self._producer: Any = None

    def stop(self) -> None:
        """Ask :meth:`run` to end; what is not written is read again by the next one."""
        self._stopping.set()

    async def run(self) -> None:
        """Carry records over until told to stop.

        Raises:
            RigcanaryError: when Kafka cannot be reached.
        """
        try:
            await self._connect()
            log.info(
                "influx sink ready: %s to InfluxDB %s, bucket %s",
                self._settings.kafka, self._settings.influx.url, self._settings.influx.bucket,
            )  # fmt: skip
            while not self._stopping.is_set():
                await self._round()
        except (KafkaError, OSError) as error:
            raise RigcanaryError(f"Kafka {self._settings.kafka}: {error or repr(error)}") from error
        finally:
            await self._close()

    async def _connect(self) -> None:
        batch = 1 if self._settings.profile == "embedded" else 16_384
        for attempt in range(START_ATTEMPTS):
            self._producer = AIOKafkaProducer(**self._options, acks="all", max_batch_size=batch)
            self._consumer = AIOKafkaConsumer(
                *TABLES,
                **self._options,
                group_id=self._settings.group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=4_194_304,
            )
            try:
                await self._producer.start()
                await self._consumer.start()
                return
            except (KafkaError, OSError) as error:
                await self._close_kafka()
                if attempt == START_ATTEMPTS - 1 or self._stopping.is_set():
                    raise
                log.warning("Kafka %s: %s; trying again", self._settings.kafka, error)
                await self._pause(backoff_seconds(attempt, self._rng))

    async def _round(self) -> None:
        fetched = await self._consumer.getmany(
            timeout_ms=POLL_MS, max_records=self._settings.batch_records
        )
        lines: list[Line] = []
        for records in fetched.values():
            for record in records:
                lines += await self._lines(record)
        if not await self._write(lines):
            return  # told to stop; nothing is committed
        offsets = {tp: records[-1].offset + 1 for tp, records in fetched.items()}
        if offsets:
            try:
                await self._consumer.commit(offsets)
            except (CommitFailedError, IllegalStateError) as error:
                # Another sink has the partition now and writes the same points again.
                log.info("offsets are not committed: %s", error)
        self._note_lag(offsets)

    async def _lines(self, record: Any) -> list[Line]:
        """The points of one record; one that is no such value becomes a dead letter."""
        table = TABLES[record.topic]
        if record.value is None:
            return []
        try:
            return [Line(table, text) for text in LINES[table](orjson.loads(record.value))]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self.metrics.records.labels(table).inc()
            detail = f"no value of {table}: {error!r}"
            await self._file("record", record.topic, detail, record.value)
            return []

    async def _write(self, lines: list[Line]) -> bool:
        """Write until InfluxDB has them; False when told to stop before."""
        for attempt in itertools.count() if lines else ():
            try:
                refused = await asyncio.to_thread(self._writer.write, lines)
            except InfluxAway as away:
                if self._stopping.is_set():
                    return False
                await self._wait(away, attempt)
            else:
                await self._written(lines, refused)
                break
        return True

    async def _written(self, lines: list[Line], refused: list[Refused]) -> None:
        self.metrics.connected.set(1)
        if self._away:
            self._away = False
            log.info("InfluxDB %s: answers again", self._settings.influx.url)
        for line, why in refused:
            await self._file("refused", _TOPICS[line.table], why, line.text.encode())
            self.metrics.points.labels(line.table, "refused").inc()
        bad = {id(point.line) for point in refused}
        for line in lines:
            if id(line) not in bad:
                self.metrics.points.labels(line.table, "written").inc()

    async def _wait(self, away: InfluxAway, attempt: int) -> None:
        if not self._away:
            self._away = True
            url = self._settings.influx.url
            log.warning("InfluxDB %s: %s; Kafka holds the points meanwhile", url, away)
        self.metrics.connected.set(0)
        self.metrics.retries.inc()
        seconds = max(backoff_seconds(attempt, self._rng), away.retry_after_seconds or 0.0)
        # Fetching keeps the membership of the group alive, however long InfluxDB is away.
        looked = await self._consumer.getmany(timeout_ms=0, max_records=1)
        for tp, records in looked.items():
            self._consumer.seek(tp, records[0].offset)
        await self._pause(seconds)

    async def _file(self, reason: str, topic: str, detail: str, payload: bytes) -> None:
        value = dead_letter(reason, detail, topic, time.time_ns() // 1_000_000, payload)
        await self._producer.send_and_wait(DEAD_LETTER, value)

    def _note_lag(self, offsets: Mapping[Any, int]) -> None:
        self._next.update(offsets)
        lag = dict.fromkeys(TABLES, 0)
        for tp in self._consumer.assignment():
            mark = self._consumer.highwater(tp)
            if mark is not None and tp in self._next:
                lag[tp.topic] += max(0, mark - self._next[tp])
        for topic, count in lag.items():
            self.metrics.lag.labels(topic).set(count)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _close_kafka(self) -> None:
        for client in (self._consumer, self._producer):
            if client is not None:
                try:
                    await asyncio.wait_for(client.stop(), 3)
                except (TimeoutError, KafkaError, OSError) as error:
                    log.debug("a Kafka client did not close cleanly: %r", error)
        self._consumer = self._producer = None

    async def _close(self) -> None:
        await self._close_kafka()
        await asyncio.to_thread(self._writer.close)


async def run_influx_sink(settings: InfluxSinkSettings) -> None:
    """Run a sink until SIGTERM or SIGINT.

    Raises:
        ConfigError: when ``metrics_port`` cannot be had.
        RigcanaryError: when Kafka cannot be reached.
    """
    sink = InfluxSink(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sink.stop)
    if settings.metrics_port is not None:
        host, port = settings.metrics_host, settings.metrics_port
        try:
            server, _ = start_http_server(port, addr=host, registry=sink.metrics.registry)
        except OSError as error:
            raise ConfigError(
                f"metrics_port {port}: cannot listen on {host}: {error.strerror}"
            ) from error
        log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    await sink.run()
