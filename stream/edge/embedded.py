"""What reading from the embedded Kafka (Tansu) needs of Faust beside settings."""

from typing import Any, Final

from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

FETCH_MAX_WAIT_MS: Final = 200
"""Tansu looks for new records only after half of the time that a fetch may wait, and Faust lets
it wait 1,500 ms: records were read after 365 ms (median), 750 ms (most); with 50 ms after 5 and
21. A look costs both sides CPU, so 200."""


class _ConsumerThread(AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust gives a fixed number; aiokafka hands this on to its fetcher when it starts.
        consumer._fetch_max_wait_ms = FETCH_MAX_WAIT_MS  # noqa: SLF001
        return consumer


class _Consumer(Consumer):
    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class _Transport(Transport):
    Consumer = _Consumer


def read_promptly(app: Any) -> None:
    """Make a Faust app's consumer ask the embedded Kafka often; call before anything is started."""
    app.transport = _Transport(app.conf.broker_consumer, app)
