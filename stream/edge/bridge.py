"""The bridge: MQTT → Kafka, acknowledging a message only after Kafka has it.

Batches are handled one after the other: collect, pack, deliver, acknowledge. While Kafka is
slow or away nothing is acknowledged, so the MQTT broker's in-flight window is the back-pressure
and the messages wait in this bridge's persistent session.
"""

import asyncio
import contextlib
import logging
import signal
import time

from stream.bridge_settings import BridgeSettings
from stream.edge.bridge_kafka import KafkaOutlet
from stream.edge.bridge_metrics import BridgeMetrics
from stream.edge.bridge_mqtt import MqttInbox
from stream.edge.bridge_packer import pack

log = logging.getLogger("rigcanary.bridge")

REPORT_SECONDS = 60.0


class Bridge:
    """One bridge process. ``await run()`` until :meth:`stop` is called."""

    def __init__(self, settings: BridgeSettings, metrics: BridgeMetrics | None = None) -> None:
        """Call inside the event loop.

        Raises:
            ConfigError: when a certificate file cannot be used.
        """
        self.settings = settings
        self.metrics = metrics or BridgeMetrics()
        self.inbox = MqttInbox(settings, self.metrics)
        self.outlet = KafkaOutlet(settings, self.metrics)
        self._stopping = asyncio.Event()
        self._kafka_ready = asyncio.Event()
        self._handled = 0

    def stop(self) -> None:
        """Ask :meth:`run` to end: no more messages, flush what is in hand, disconnect."""
        self._stopping.set()

    async def run(self) -> None:
        """Carry messages until :meth:`stop`.

        Raises:
            ConfigError: when the metrics port is taken.
            RigcanaryError: when Kafka refuses to create a topic.
        """
        if self.settings.metrics_port is not None:
            port = self.metrics.serve(self.settings.metrics_host, self.settings.metrics_port)
            log.info("metrics at http://%s:%d/metrics", self.settings.metrics_host, port)
        # MQTT first: from its subscription on, the broker keeps messages for this bridge.
        self.inbox.start()
        pump = asyncio.create_task(self._pump(), name="bridge-pump")
        reporter = asyncio.create_task(self._report(), name="bridge-report")
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({pump, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self.inbox.close()
            await asyncio.wait({pump}, timeout=self.settings.stop_seconds)
            if not pump.done():
                log.warning("%d messages stay at the MQTT broker: no Kafka", self.inbox.held)
        finally:
            for task in (pump, reporter, stopping):
                task.cancel()
            await self.inbox.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
            await self.outlet.stop()

    async def _pump(self) -> None:
        await self.outlet.start()
        self._kafka_ready.set()
        # Not waiting for the subscription: rumqttd answers it only after the messages that the
        # session held are acknowledged.
        while batch := await self.inbox.collect():
            self.metrics.unacked.set(self.inbox.held)
            partitions = await self.outlet.partitions()
            records, tally = pack(batch, partitions, self.settings.max_record_bytes)
            await self.outlet.deliver(records)
            self.metrics.count(tally)
            self._handled += len(batch)
            self.inbox.release(batch)

    async def _report(self) -> None:
        await self._kafka_ready.wait()
        await self.inbox.connected.wait()
        log.info("bridge ready: MQTT %s to Kafka %s", self.settings.mqtt, self.settings.kafka)
        before, since = self._handled, time.monotonic()
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            now = time.monotonic()
            rate = (self._handled - before) / (now - since)
            log.info("%.0f messages/s, %d in hand", rate, self.inbox.held)
            before, since = self._handled, now


async def run_bridge(settings: BridgeSettings) -> None:
    """Run a bridge until SIGTERM or SIGINT (see :meth:`Bridge.run` for what it raises)."""
    bridge = Bridge(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, bridge.stop)
    await bridge.run()
