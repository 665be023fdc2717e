"""The server side on one machine: brokers, runner, worker, bridge; started in order, watched.

:class:`OneBox` is what ``serve`` and ``demo`` have in common. The embedded Kafka forgets
everything when it ends and never forgets before, so the box keeps a journal of the worker's
tables and starts the broker afresh when it has grown past its limit or crashed.
"""

import asyncio
import fcntl
import logging
import os
import time
from typing import Final

from contract import topics
from contract.errors import ConfigError, RigcanaryError
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
from onebox.journal import Journal
from onebox.journal_store import Store
from onebox.parts import BoxSettings, Parts
from onebox.processes import Supervisor
from onebox.tasks import together

log = logging.getLogger(__name__)

INPUTS: Final = (topics.TELEMETRY, topics.EVENTS, topics.COMMANDS)
"""What the worker reads: unread records of these are carried over a new start of Kafka."""
OUTPUTS: Final = {
    topics.MINUTES: 500,
    topics.RISKS: 500,
    topics.DECISIONS: 2000,
    topics.DELIVERIES: 2000,
    topics.DEAD_LETTER: 200,
}
"""What others read, and how many of a partition's newest records are carried over with it."""
_LOOK_SECONDS: Final = 1.0


class OneBox:
    """The server side. ``start()``, then ``watch()`` until it raises or is cancelled, ``stop()``.

    ``renewals`` counts new starts of the embedded Kafka, ``renewing`` says that one is under way.
    Children are ``mqtt``, ``kafka``, ``runner``, ``worker`` and ``bridge`` of ``supervisor``.
    """

    def __init__(self, settings: BoxSettings, supervisor: Supervisor) -> None:
        self.settings = settings
        self.supervisor = supervisor
        self.mqtt = EmbeddedMqtt(
            settings.ports.mqtt, settings.state / "mqtt", settings.ports.mqtt_v5
        )
        self.kafka = EmbeddedKafka(settings.ports.kafka)
        self.parts = Parts(settings)
        self.renewals = 0
        self.renewing = False
        self._lock: int | None = None
        self._store: Store | None = None
        self._journal: Journal | None = None
        self._started_kafka = 0.0

    def endpoints(self) -> dict[str, str]:
        """What ``serve`` prints when it is ready (contracts section 5)."""
        return {
            "mqtt": self.settings.mqtt_address,
            "kafka": self.settings.kafka_address,
            "runner": self.settings.runner_url,
            "web": self.settings.web_url,
            "token_file": str(self.settings.token_file),
        }

    async def start(self) -> None:
        """Start everything; returns once a message that is published is sure to be counted.

        Raises:
            ConfigError: a folder or port cannot be used.
            RigcanaryError: a part did not come up.
        """
        self._take_state()
        self.parts.prepare()
        await together(
            self.supervisor.start(self.parts.runner()), self._start_path(fresh_mqtt=True)
        )

    async def _start_path(self, *, fresh_mqtt: bool) -> None:
        """Brokers first, then what connects them."""
        if fresh_mqtt:
            await together(self.supervisor.start(self.mqtt.spec()), self._start_kafka())
        else:
            await self._start_kafka()
        await together(
            self.supervisor.start(self.parts.worker()),
            self.supervisor.start(self.parts.bridge()),
        )

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
            inputs=INPUTS,
            outputs=OUTPUTS,
            group=WORKER_APP,
            partitions=PARTITIONS,
        )
        tables, carried = await self._journal.restore()
        if tables or carried:
            log.info("restored %d table records and %d others", tables, carried)
        await self._journal.start()

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
                if age >= self.settings.min_renewal_seconds:
                    await self.renew_kafka(orderly=True)

    async def renew_kafka(self, *, orderly: bool) -> None:
        """Start the embedded Kafka afresh. MQTT holds what the rigs send meanwhile.

        ``orderly``: the broker still answers, so unread messages are carried over.

        Raises:
            RigcanaryError: when a part does not come up again.
        """
        self.renewing = True
        used = rss_bytes(self.supervisor.children["kafka"].pid) / 1e6
        began = time.monotonic()
        grace = None if orderly else 1.0  # without Kafka there is nothing they could finish
        await self.supervisor.stop(["bridge"], grace)
        await self.supervisor.stop(["worker"], grace)
        if orderly:
            await self._keep()
        await self._stop_journal()
        await self.supervisor.stop(["kafka"])
        await self._start_path(fresh_mqtt=False)
        self.renewals += 1
        self.renewing = False
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

        ``keep`` brings the journal up to date for the next start.
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
            await self.supervisor.stop(["bridge", "worker", "runner"], None if keep else 8.0)
            await self.supervisor.stop(["kafka", "mqtt"])
            await self.parts.close()
            if self._store is not None:
                self._store.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
