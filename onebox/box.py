"""The server side on one machine: brokers, runner, worker, bridge; started in order, watched.

:class:`OneBox` is what ``serve`` and ``demo`` have in common. The embedded Kafka forgets
everything when it ends and never forgets before, so the box keeps a journal of the worker's
tables and starts the broker afresh when it has grown past its limit or crashed.
"""

import asyncio
import fcntl
import json
import logging
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from contract import topics
from contract.errors import ConfigError, RigcanaryError
from onebox import toml
from onebox.brokers import (
    ALL_TOPICS,
    CHANGELOGS,
    PARTITIONS,
    WORKER_APP,
    EmbeddedKafka,
    EmbeddedMqtt,
    create_topics,
    rss_bytes,
)
from onebox.journal import Journal, Store
from onebox.ports import HOST, free_port
from onebox.processes import ChildSpec, Supervisor, rigcanary_argv

log = logging.getLogger(__name__)

PASSED_BETWEEN: Final = (topics.TELEMETRY, topics.EVENTS)
"""What the worker reads: unread records of these are carried over a new start of Kafka."""
_LOOK_SECONDS: Final = 1.0
_MIN_BETWEEN_SECONDS: Final = 60.0
"""Least time between two new starts for memory: below it the limit is too small for the load."""


@dataclass(frozen=True)
class Ports:
    """Where each part listens on loopback."""

    mqtt: int
    kafka: int
    runner: int
    web: int
    mqtt_v5: int | None = None


@dataclass(frozen=True)
class BoxSettings:
    """What a box needs to know. ``runner_nodes`` maps a node's name to its cards."""

    state: Path
    ports: Ports
    model: str = "default"
    kafka_memory_bytes: int = 512 * 1024 * 1024
    webhook: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    runner_nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checkpoint_grace_seconds: float = 8.0
    restore_min_interval_seconds: float = _MIN_BETWEEN_SECONDS


class OneBox:
    """The server side. ``start()``, then ``watch()`` until it raises or is cancelled, ``stop()``.

    Children are ``mqtt``, ``kafka``, ``runner``, ``worker`` and ``bridge`` of ``supervisor``.
    """

    def __init__(self, settings: BoxSettings, supervisor: Supervisor) -> None:
        self.settings = settings
        self.supervisor = supervisor
        self.mqtt = EmbeddedMqtt(
            settings.ports.mqtt, settings.state / "mqtt", settings.ports.mqtt_v5
        )
        self.kafka = EmbeddedKafka(settings.ports.kafka)
        self.worker_waits_for = ""
        self.renewals = 0
        self._http = httpx.AsyncClient(timeout=2.0, trust_env=False)
        self._lock: int | None = None
        self._store: Store | None = None
        self._journal: Journal | None = None
        self._started_kafka = 0.0

    @property
    def token_file(self) -> Path:
        """Holds the bearer token of the runner's HTTP interface."""
        return self.settings.state / "runner" / "token"

    @property
    def runner_url(self) -> str:
        return f"http://{HOST}:{self.settings.ports.runner}"

    @property
    def web_url(self) -> str:
        return f"http://{HOST}:{self.settings.ports.web}"

    def endpoints(self) -> dict[str, str]:
        """What ``serve`` prints when it is ready (contracts section 5)."""
        return {
            "mqtt": self.mqtt.address,
            "kafka": self.kafka.address,
            "runner": self.runner_url,
            "web": self.web_url,
            "token_file": str(self.token_file.resolve()),
        }

    async def start(self) -> None:
        """Start everything; returns once a message that is published is sure to be counted.

        Raises:
            ConfigError: a folder or port cannot be used.
            RigcanaryError: a part did not come up.
        """
        self._take_state()
        await together(
            self.supervisor.start(self.mqtt.spec()),
            self._start_kafka(),
            self.supervisor.start(self._runner()),
        )
        await together(self.supervisor.start(self._worker()), self.supervisor.start(self._bridge()))

    def _take_state(self) -> None:
        state = self.settings.state
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--state {state} is in use by another rigcanary; stop that one, or give another "
                "folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"--state {state}: cannot use it: {error.strerror}") from error
        self._store = Store(state / "journal.sqlite")

    # -- parts -----------------------------------------------------------------------------------

    async def _start_kafka(self) -> None:
        store = self._store
        if store is None:
            raise RuntimeError("the state folder is taken first")
        await self.supervisor.start(self.kafka.spec())
        self._started_kafka = time.monotonic()
        await create_topics(self.kafka.address, ALL_TOPICS)
        self._journal = Journal(
            store,
            self.kafka.address,
            changelogs=CHANGELOGS,
            inputs=PASSED_BETWEEN,
            group=WORKER_APP,
            partitions=PARTITIONS,
        )
        tables, carried = await self._journal.restore()
        if tables or carried:
            log.info("restored %d table records and %d unread messages", tables, carried)
        await self._journal.start()

    def _runner(self) -> ChildSpec:
        state = self.settings.state
        config = toml.write(
            state / "runner.toml",
            {
                "checkpoint_grace_seconds": self.settings.checkpoint_grace_seconds,
                "nodes": [
                    {"name": name, "devices": list(devices)}
                    for name, devices in self.settings.runner_nodes.items()
                ],
            },
        )
        return ChildSpec(
            name="runner",
            restart=True,
            ready=lambda: self._answers(f"{self.runner_url}/healthz"),
            argv=rigcanary_argv(
                "runner",
                "--port",
                str(self.settings.ports.runner),
                "--state",
                str(state / "runner"),
                "--config",
                str(config),
            ),
            stop_seconds=self.settings.checkpoint_grace_seconds + 4,
        )

    def _worker(self) -> ChildSpec:
        state = self.settings.state
        receivers: list[dict[str, Any]] = [
            {
                "name": "runner",
                "url": f"{self.runner_url}/v1/webhooks",
                "allow_private": True,
                "secret_file": str((state / "runner" / "webhook-secret").resolve()),
            }
        ]
        if self.settings.webhook is not None and self.settings.webhook_secret is not None:
            secret_file = state / "webhook-secret"
            toml.write_private(secret_file, self.settings.webhook_secret + "\n")
            receivers.append(
                {
                    "name": "webhook",
                    "url": self.settings.webhook,
                    "allow_private": True,
                    "secret_file": str(secret_file.resolve()),
                }
            )
        config = toml.write(
            state / "worker.toml",
            {
                "model": self.settings.model,
                "partitions": PARTITIONS,
                "instance": "onebox",
                "app_id": WORKER_APP,
                "receivers": receivers,
            },
        )
        return ChildSpec(
            name="worker",
            restart=True,
            ready=self._worker_is_ready,
            ready_seconds=120,
            argv=rigcanary_argv(
                "worker",
                "--kafka",
                self.kafka.address,
                "--profile",
                "embedded",
                "--state",
                str(state / "worker"),
                "--web-port",
                str(self.settings.ports.web),
                "--config",
                str(config),
            ),
            stop_seconds=20,  # it stores the open minutes first
        )

    async def _worker_is_ready(self) -> bool:
        try:
            reply = await self._http.get(f"{self.web_url}/healthz")
            self.worker_waits_for = "; ".join(reply.json().get("reasons", []))
        except (httpx.HTTPError, json.JSONDecodeError):
            return False
        return reply.status_code == httpx.codes.OK

    def _bridge(self) -> ChildSpec:
        used = self.settings.ports
        port = free_port({used.mqtt, used.kafka, used.runner, used.web, used.mqtt_v5 or 0})
        metrics = f"http://{HOST}:{port}/metrics"
        return ChildSpec(
            name="bridge",
            restart=True,
            ready=lambda: self._bridge_is_ready(metrics),
            argv=rigcanary_argv(
                "bridge",
                "--mqtt",
                self.mqtt.address,
                "--kafka",
                self.kafka.address,
                "--profile",
                "embedded",
                "--client-id",
                "rigcanary-onebox-bridge",
                "--metrics-port",
                str(port),
            ),
        )

    async def _bridge_is_ready(self, url: str) -> bool:
        try:
            lines = (await self._http.get(url)).text.splitlines()
        except httpx.HTTPError:
            return False
        connected = {f'rigcanary_bridge_connected{{to="{to}"}} 1.0' for to in ("mqtt", "kafka")}
        return connected <= set(lines)

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._http.get(url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    # -- while it runs ---------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look after the embedded Kafka; ends only by an exception.

        Raises:
            RigcanaryError: when a part was given up.
        """
        while True:
            done, _ = await asyncio.wait({self.supervisor.failed}, timeout=_LOOK_SECONDS)
            if done:
                await self.supervisor.failed
            child = self.supervisor.children["kafka"]
            if child.crashed.is_set():
                log.warning("the embedded Kafka crashed; starting it afresh from the journal")
                await self.renew_kafka(orderly=False)
            elif rss_bytes(child.pid) > self.settings.kafka_memory_bytes:
                age = time.monotonic() - self._started_kafka
                if age >= self.settings.restore_min_interval_seconds:
                    await self.renew_kafka(orderly=True)

    async def renew_kafka(self, *, orderly: bool) -> None:
        """Start the embedded Kafka afresh. MQTT holds what the rigs send meanwhile.

        ``orderly``: the broker still answers, so unread messages are carried over.

        Raises:
            RigcanaryError: when a part does not come up again.
        """
        used = rss_bytes(self.supervisor.children["kafka"].pid) / 1e6
        began = time.monotonic()
        grace = None if orderly else 1.0  # without Kafka there is nothing they could finish
        await self.supervisor.stop(["bridge"], grace)
        await self.supervisor.stop(["worker"], grace)
        if orderly:
            await self._keep()
        await self._stop_journal()
        await self.supervisor.stop(["kafka"])
        await self._start_kafka()
        await together(self.supervisor.start(self._worker()), self.supervisor.start(self._bridge()))
        self.renewals += 1
        log.info(
            "started the embedded Kafka afresh in %.1f s (it held %.0f MB)",
            time.monotonic() - began,
            used,
        )

    async def _keep(self) -> None:
        """Bring the journal up to date and carry over what the worker has not counted."""
        if self._journal is None:
            return
        if not await self._journal.drain():
            log.warning("the journal may lack the last changes of the worker's tables")
        carried = await self._journal.carry()
        if carried:
            log.info("carrying %d unread messages over", carried)

    async def _stop_journal(self) -> None:
        if self._journal is not None:
            await self._journal.stop()
            self._journal = None

    async def stop(self, *, keep: bool = True) -> None:
        """End the parts in the order of the path, so that nothing on the way is lost.

        ``keep`` brings the journal up to date for the next start; without it all end at once.
        """
        try:
            if keep:
                await self.supervisor.stop(["bridge"])
                await self.supervisor.stop(["worker"])
                kafka = self.supervisor.children.get("kafka")
                if kafka is not None and kafka.pid is not None:
                    await self._keep()
        except RigcanaryError as error:
            log.warning("%s", error)
        finally:
            await self._stop_journal()
            await self.supervisor.stop(["bridge", "worker", "runner", "kafka", "mqtt"])
            await self._http.aclose()
            if self._store is not None:
                self._store.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


async def together(*steps: Coroutine[Any, Any, Any]) -> None:
    """Run ``steps`` side by side; when one fails the others are cancelled and its error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except* RigcanaryError as errors:
        failure = errors.exceptions[0]
    else:
        return
    raise failure
