"""A real embedded Kafka broker on a free port."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest_asyncio

from onebox import ports
from onebox.brokers import EmbeddedKafka, create_topics
from onebox.processes import Supervisor


@dataclass
class KafkaFixture:
    """A broker that a test may restart, which empties it."""

    supervisor: Supervisor
    broker: EmbeddedKafka

    @property
    def address(self) -> str:
        return self.broker.address

    async def restart(self) -> None:
        await self.supervisor.stop(["kafka"])
        await self.supervisor.start(self.broker.spec())

    async def create(self, *names: str, partitions: int = 2) -> None:
        await create_topics(self.address, dict.fromkeys(names, partitions))


@pytest_asyncio.fixture
async def kafka(tmp_path: Path) -> AsyncIterator[KafkaFixture]:
    broker = EmbeddedKafka(ports.free_port(set()))
    async with Supervisor(tmp_path / "log") as supervisor:
        await supervisor.start(broker.spec())
        yield KafkaFixture(supervisor, broker)
