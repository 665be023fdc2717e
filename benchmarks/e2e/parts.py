"""The processes under test, started as a user would start them, and their own counters."""

import base64
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import httpx
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from contract import topics
from contract.errors import ConfigError
from onebox import toml
from onebox.brokers import EmbeddedKafka, EmbeddedMqtt, admin
from onebox.child import ChildSpec, rigcanary_argv
from onebox.ports import HOST, choose
from onebox.processes import Supervisor

PARTITIONS: Final = 4
APP_ID: Final = "rigcanary-benchmark"
_TABLES: Final = (f"{APP_ID}-rows-changelog", f"{APP_ID}-nodes-changelog")

Broker = Literal["embedded", "kafka"]


@dataclass(frozen=True, slots=True)
class PartSettings:
    """``kafka`` is the address of a Kafka that runs already, with the broker ``kafka``."""

    broker: Broker
    kafka: str | None
    state: Path
    model: str
    worker_script: Path | None


class Parts:
    """MQTT broker, Kafka, bridge and worker of one run."""

    def __init__(self, settings: PartSettings, supervisor: Supervisor) -> None:
        self.settings = settings
        self.supervisor = supervisor
        ports = choose({"mqtt": 0, "kafka": 0, "web": 0, "metrics": 0})
        self.mqtt = EmbeddedMqtt(ports["mqtt"], settings.state / "mqtt")
        self.mqtt_port = ports["mqtt"]
        self._embedded = EmbeddedKafka(ports["kafka"])
        self._web = f"http://{HOST}:{ports['web']}"
        self._metrics_port = ports["metrics"]
        self._http = httpx.AsyncClient(timeout=10.0, trust_env=False)
        self.secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self._made_topics = False

    @property
    def kafka(self) -> str:
        """Bootstrap address of Kafka."""
        return self.settings.kafka or self._embedded.address

    @property
    def profile(self) -> str:
        """The profile that bridge and worker run with."""
        return self.settings.broker

    async def start_brokers(self) -> None:
        """Start what is embedded; look at what is not.

        Raises:
            ConfigError: when no Kafka answers at the given address, or it is in use.
            RigcanaryError: when a broker does not start.
        """
        await self.supervisor.start(self.mqtt.spec())
        if self.settings.broker == "embedded":
            await self.supervisor.start(self._embedded.spec())
            return
        await self._check_kafka()
        self._made_topics = True

    async def _check_kafka(self) -> None:
        try:
            async with admin(self.kafka) as client:
                present = set(await client.list_topics())
        except (KafkaError, OSError) as error:
            raise ConfigError(
                f"--kafka {self.kafka}: no Kafka answers ({error}); start one there first, or take "
                "--broker embedded"
            ) from error
        taken = sorted(present & {*topics.KAFKA_TOPICS, *_TABLES})
        if taken:
            raise ConfigError(
                f"--kafka {self.kafka} already has the topic {taken[0]}: the benchmark makes and "
                "deletes its topics, so it needs a Kafka that rigcanary does not use"
            )

    async def start_pipeline(self, webhook: str) -> None:
        """Start bridge and worker; returns when both are ready.

        Raises:
            RigcanaryError: when one does not come up, with its last words.
        """
        await self.supervisor.start(self._bridge())
        await self.supervisor.start(self._worker(webhook))

    def _bridge(self) -> ChildSpec:
        options = {
            "--mqtt": self.mqtt.address,
            "--kafka": self.kafka,
            "--profile": self.profile,
            "--client-id": APP_ID,
            "--partitions": PARTITIONS,
            "--metrics-port": self._metrics_port,
        }
        return ChildSpec("bridge", rigcanary_argv("bridge", options), ready=self._bridge_ready)

    def _worker(self, webhook: str) -> ChildSpec:
        receiver = {
            "name": "benchmark",
            "url": webhook,
            "secret": self.secret,
            "allow_private": True,
        }
        values: dict[str, object] = {
            "kafka": self.kafka,
            "profile": self.profile,
            "app_id": APP_ID,
            "partitions": PARTITIONS,
            "state": str(self.settings.state / "worker"),
            "web_port": int(self._web.rpartition(":")[2]),
            "model": self.settings.model,
            "receivers": [receiver],
        }
        (self.settings.state / "worker").mkdir()
        config = toml.write(self.settings.state / "worker.toml", values)
        argv = rigcanary_argv("worker", {"--config": config})
        if self.settings.worker_script is not None:
            argv = (sys.executable, str(self.settings.worker_script), str(config))
        return ChildSpec(
            "worker", argv, ready=self._worker_ready, ready_seconds=300, stop_seconds=20
        )

    async def _bridge_ready(self) -> bool:
        text = await self._get(f"http://{HOST}:{self._metrics_port}/metrics")
        wanted = {f'rigcanary_bridge_connected{{to="{to}"}} 1.0' for to in ("mqtt", "kafka")}
        return wanted <= set(text.splitlines())

    async def _worker_ready(self) -> bool:
        try:
            return (await self._http.get(f"{self._web}/healthz")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def _get(self, url: str) -> str:
        try:
            return (await self._http.get(url)).text
        except httpx.HTTPError:
            return ""

    async def bridge_counters(self) -> dict[str, float]:
        """Sums of the bridge's counters over their labels."""
        return sums(await self._get(f"http://{HOST}:{self._metrics_port}/metrics"))

    async def worker_counters(self) -> dict[str, float]:
        """The same of the worker; reading them costs the worker what a Prometheus does."""
        return sums(await self._get(f"{self._web}/metrics"), prefix="rigcanary_worker_")

    async def delete_topics(self, more: Sequence[str] = ()) -> None:
        """Delete what this run made in a Kafka that is not its own."""
        await self._http.aclose()
        if not self._made_topics:
            return
        async with admin(self.kafka) as client:
            present = set(await client.list_topics())
            mine = [t for t in present if t in topics.KAFKA_TOPICS or t.startswith(APP_ID)]
            await client.delete_topics([*mine, *(t for t in more if t in present)])


def sums(text: str, prefix: str = "rigcanary_bridge_") -> dict[str, float]:
    """Samples of a Prometheus text by name, added up over labels; names without the prefix."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0].removeprefix(prefix)
        found[name] = found.get(name, 0.0) + float(value)
    return found


async def highwater(bootstrap: str, topic: str) -> dict[TopicPartition, int]:
    """End offsets of a topic's partitions."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        return ends
    finally:
        await consumer.stop()
