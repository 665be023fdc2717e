"""The worker's outbox and deliverer with their state in Kafka, without Faust, to be killed.

What is real: ``Outbox``, ``Deliverer``, ``Tables``, ``Publisher``, the packed node state and its
changelog in Kafka. What stands in: Faust's app (``App``), and the decider (the decisions come from
the command). Recovery reads the changelog, as the worker's does.

Run as ``python outbox_child.py``: reads one command a line, forks a child for each, prints the
child's process id, waits for its end, prints how it ended. Forking saves the imports' second.
"""

import asyncio
import logging
import os
import random
import signal
import sys
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from contract.topics import node_key
from stream import state as node_state
from stream.edge import webhook, webhook_http
from stream.edge.kafka_read import read_topic
from stream.edge.metrics import WorkerMetrics
from stream.edge.outbox import Outbox
from stream.edge.publish import Publisher
from stream.edge.shared import Shared
from stream.edge.tables import NODES, Tables
from stream.edge.webhook import Deliverer, Hooks, Schedule
from stream.receivers import Receiver

FAST = Schedule(first_seconds=(0.01,) * 6, then_seconds=0.05, max_retry_after_seconds=0.1)
TIMEOUT_SECONDS = 0.3


class Steps:
    """Counts what a crash may fall between, and crashes at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.count = 0
        self._kill_at = kill_at

    def take(self) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class App:
    """As much of a Faust app as ``Tables`` and ``Publisher`` use; every send waits for Kafka."""

    def __init__(self, producer: Any, prefix: str, steps: Steps) -> None:
        self._producer = producer
        self._prefix = prefix
        self._steps = steps
        # As Faust's buffer: what is sent first is written first. aiokafka alone lets a newcomer
        # pass those who wait for a full batch, and an older state would replace a newer one.
        self._turn = asyncio.Lock()

    def Table(self, name: str, **_: Any) -> "Log":
        return Log(self, name)

    def topic(self, name: str, **_: Any) -> "Log":
        return Log(self, name)

    async def send(self, name: str, partition: int, key: bytes, value: bytes) -> None:
        self._steps.take()
        async with self._turn:
            topic = self._prefix + name
            await self._producer.send_and_wait(topic, value, key=key, partition=partition)
        self._steps.take()


class Log:
    """A table with its changelog, or a topic."""

    def __init__(self, app: App, name: str) -> None:
        self.data: dict[bytes, bytes] = {}
        self._app = app
        self._name = name

    def send_changelog(self, partition: int, key: bytes, value: bytes) -> Any:
        return self._app.send(self._name, partition, key, value)

    def send_soon(self, *, key: bytes, value: bytes, partition: int) -> Any:
        return self._app.send(self._name, partition, key, value)


class Nothing:
    """Takes whatever the outbox tells the fleet view."""

    def decision(self, decision: Any) -> None:
        """Not looked at."""


def count_requests(steps: Steps) -> None:
    """A step before each request and one after its answer."""

    class Post(webhook_http.Post):
        async def send(self, outgoing: webhook_http.Outgoing) -> webhook_http.Answer:
            steps.take()
            answer = await super().send(outgoing)
            steps.take()
            return answer

    webhook.Post = Post  # type: ignore[attr-defined]


def make_shared(app: App) -> Shared:
    """What the outbox uses of the worker's shared state, on one partition."""
    unused: Any = None
    return Shared(
        settings=unused,
        tables=Tables(app, 1),
        predictor=unused,
        publisher=Publisher(app, 1),
        decider=unused,
        watch=unused,
        view=Nothing(),  # type: ignore[arg-type]
        metrics=WorkerMetrics(),
        histories=[],
    )


async def run(command: dict[str, Any]) -> None:
    """Decide what is not decided yet, deliver everything, then end."""
    steps = Steps(command["kill_at"])
    count_requests(steps)
    rng = random.Random(command["seed"])
    producer = AIOKafkaProducer(bootstrap_servers=command["kafka"], acks="all", max_batch_size=1)
    await producer.start()
    shared = make_shared(App(producer, command["prefix"] + ".", steps))
    outbox = Outbox(shared)
    partition = shared.partition(0)
    async for value in read_topic(command["kafka"], f"{command['prefix']}.{NODES}"):
        state = node_state.unpack(value)
        partition.states[node_key(state.site, state.node)] = state
    receivers = [
        Receiver.model_validate({**r, "allow_private": True}).model_copy(
            update={"timeout_seconds": TIMEOUT_SECONDS}
        )
        for r in command["receivers"]
    ]
    crashed: asyncio.Queue[BaseException] = asyncio.Queue()
    outbox.deliverer = Deliverer(
        receivers,
        outbox.on_delivered,
        rng=rng,
        schedule=FAST,
        hooks=Hooks(on_room=outbox.submit_all, on_crash=crashed.put_nowait),
        capacity=4,  # small, so that refusing and making room are part of it
    )
    outbox.submit_all()
    for number, decision in enumerate(command["decisions"], 1):
        site, node = decision["data"]["site"], decision["data"]["node"]
        key = node_key(site, node)
        state = partition.state(site, node, key)
        if number <= state.scored_minute_ms:
            continue  # decided before the crash: remembered in the same record as the outbox
        state.scored_minute_ms = number
        await outbox.save(partition, key, state, [decision])
        await asyncio.sleep(rng.uniform(0, 0.02))
    # Not in the outbox any more, and that is recorded too.
    while any(outbox.deliverer.depth().values()) or any(
        state.outbox for state in partition.states.values()
    ):
        if not crashed.empty():
            raise crashed.get_nowait()
        await asyncio.sleep(0.01)
    await outbox.deliverer.close()
    await producer.stop()


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            logging.disable(logging.WARNING)  # the receiver's misdeeds, thousands of them
            asyncio.run(run(orjson.loads(line)))
            return
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
