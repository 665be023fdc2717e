"""Keeps :class:`onebox.facts.Facts` up to date: reads Kafka and asks the runner."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from contract.errors import RigcanaryError
from contract.topics import DECISIONS, MINUTES, RISKS
from onebox import kafka_read
from onebox.brokers import PARTITIONS
from onebox.facts import Facts

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.5
MAX_POINTS: Final = 4000
"""The most loss points the runner gives in one answer."""
_LIVE_POINTS: Final = 200


class KafkaWatcher:
    """Reads minutes, risks and decisions without a consumer group, from the beginning.

    A broker that is away, or was started afresh, is asked again from the beginning.
    """

    def __init__(self, bootstrap: str, facts: Facts) -> None:
        self._bootstrap = bootstrap
        self._take: dict[str, Callable[[Mapping[str, Any]], None]] = {
            MINUTES: facts.on_minute,
            RISKS: facts.on_risks,
            DECISIONS: facts.on_decision,
        }
        self.records = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except KafkaError as error:
                log.debug("Kafka is away: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            partitions = [TopicPartition(t, p) for t in self._take for p in range(PARTITIONS)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while True:
                fetched = await consumer.getmany(timeout_ms=500, max_records=500)
                for partition, messages in fetched.items():
                    for message in messages:
                        self._take[partition.topic](orjson.loads(message.value))
                        self.records += 1
                await asyncio.sleep(0)  # others run, however long the backlog
        finally:
            await kafka_read.stop(consumer)


class RunnerClient:
    """The runner's HTTP interface, as the demo needs it."""

    def __init__(self, url: str, token_file: Path, facts: Facts) -> None:
        self._facts = facts
        token = token_file.read_text(encoding="utf-8").strip()
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=5.0,
            trust_env=False,
            headers={"Authorization": f"Bearer {token}"},
        )
        self._job_id: str | None = None

    async def post_job(self, body: Mapping[str, Any]) -> str:
        """Queue a job and follow it; returns its id.

        Raises:
            RigcanaryError: when the runner refuses it.
        """
        try:
            reply = await self._http.post("/v1/jobs", json=dict(body))
            reply.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise RigcanaryError(
                f"the runner refuses the job ({error.response.status_code}): "
                f"{error.response.text[:300]}"
            ) from error
        except httpx.HTTPError as error:
            raise RigcanaryError(f"the runner does not answer: {error!r}") from error
        self._facts.job = reply.json()
        self._job_id = str(reply.json()["id"])
        return self._job_id

    async def run(self) -> None:
        """Ask every half second until cancelled; a runner that is away is asked again."""
        while True:
            await self.refresh(_LIVE_POINTS)
            await asyncio.sleep(_POLL_SECONDS)

    async def refresh(self, points: int = MAX_POINTS) -> bool:
        """Ask once; false when the runner did not answer."""
        facts = self._facts
        try:
            if self._job_id is not None:
                facts.job = await self._get(f"/v1/jobs/{self._job_id}")
                facts.progress = await self._get(f"/v1/jobs/{self._job_id}/progress?limit={points}")
            facts.migrations = await self._get("/v1/migrations?limit=100")
        except (httpx.HTTPError, ValueError) as error:
            log.debug("the runner does not answer: %r", error)
            return False
        return True

    async def _get(self, path: str) -> Any:
        reply = await self._http.get(path)
        reply.raise_for_status()
        return reply.json()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
