"""Peers: the same messages, one a Kafka record, through the plain and the usual design.

Run as ``python -m benchmarks.e2e.peers NAME BOOTSTRAP TOPIC PROFILE COUNT SECONDS``; prints one
JSON object with messages, wall and CPU seconds, counted from the first record on.

- ``aiokafka``: reads and decodes to an array, keeps nothing. The floor for any Python reader.
- ``faust-agent``: an agent that reads and decodes record by record, keeps nothing.
- ``faust-tumbling``: the same, with a list a node in a table of one-minute windows.
- ``faust-hopping``: the same in 60-minute windows that begin each minute, which is how a sliding
  window is written in Faust; every sample then belongs to sixty lists.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import orjson

from contract.signals import SIGNAL_NAMES

NAMES: Final = ("aiokafka", "faust-agent", "faust-tumbling", "faust-hopping")
DESCRIPTIONS: Final = {
    "aiokafka": "aiokafka getmany, orjson, readings to a float array; nothing kept",
    "faust-agent": "Faust agent a record, readings to a float array; nothing kept",
    "faust-tumbling": "Faust agent a record, list a node in a tumbling table of 60 s",
    "faust-hopping": "Faust agent a record, list a node in a hopping table of 60 min by 1 min",
}


class Tally:
    """Counts messages; time runs from the first one."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds
        self.messages = 0
        self._wall = self._cpu = 0.0

    def add(self) -> bool:
        """One message more; True when it was enough."""
        if self.messages == 0:
            self._wall, self._cpu = time.perf_counter(), time.process_time()
        self.messages += 1
        return self.messages > self._count or time.perf_counter() - self._wall > self._seconds

    def result(self) -> dict[str, float]:
        """What was measured; the first message only starts the clock."""
        return {
            "messages": self.messages - 1,
            "seconds": round(time.perf_counter() - self._wall, 3),
            "cpu_seconds": round(time.process_time() - self._cpu, 3),
        }


def decode(payload: bytes) -> tuple[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
    """A message's node and its readings [devices, signals], NaN where missing; no checks."""
    message = orjson.loads(payload)
    rows = [[device.get(name) for name in SIGNAL_NAMES] for device in message["devices"]]
    return message["node"], np.array(rows, dtype=np.float32)


async def run_aiokafka(bootstrap: str, topic: str, tally: Tally) -> None:
    """Read until the tally is full."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        count = len(await _partitions(consumer, topic))
        consumer.assign([TopicPartition(topic, p) for p in range(count)])
        while True:
            batches = await consumer.getmany(timeout_ms=200, max_records=500)
            for records in batches.values():
                for record in records:
                    decode(record.value)
                    if tally.add():
                        return
    finally:
        await consumer.stop()


async def _partitions(consumer: Any, topic: str) -> set[int]:
    for _ in range(100):
        found: set[int] | None = consumer.partitions_for_topic(topic)
        if found:
            return found
        await consumer.topics()
        await asyncio.sleep(0.1)
    raise SystemExit(f"topic {topic} is not there")


def run_faust(
    name: str, bootstrap: str, topic: str, profile: str, tally: Tally,
    finished: Callable[[], None],
) -> None:  # fmt: skip
    """Run a Faust worker; ``finished`` is called in the agent and must not return."""
    import faust

    embedded: dict[str, Any] = {"producer_max_batch_size": 1, "table_standby_replicas": 0}
    app = faust.App(
        f"{topic}-{name}",
        broker=f"kafka://{bootstrap}",
        store="memory://",
        datadir=tempfile.gettempdir(),  # else it makes a folder where it was started
        autodiscover=False,
        web_enabled=False,
        topic_partitions=4,
        topic_disable_leader=True,
        worker_redirect_stdouts=False,
        **(embedded if profile == "embedded" else {}),
    )
    readings = app.topic(topic, value_type=bytes, value_serializer="raw", partitions=4)
    windows: Any = None
    if name != "faust-agent":
        table = app.Table("readings", default=list, partitions=4)
        hopping = name == "faust-hopping"
        windows = (
            table.hopping(3600, 60, expires=3600) if hopping else table.tumbling(60, expires=3600)
        )

    async def agent(stream: Any) -> None:
        async for payload in stream:
            node, rows = decode(payload)
            if windows is not None:
                windows[node] += [rows.tolist()]
            if tally.add():
                finished()

    app.agent(readings, name="peer")(agent)
    worker = faust.Worker(app, loglevel="ERROR", redirect_stdouts=False, quiet=True)
    worker.execute_from_commandline()


def main() -> None:
    """Run one peer."""
    name, bootstrap, topic, profile, count, seconds = sys.argv[1:7]
    tally = Tally(int(count), float(seconds))

    def finished() -> None:
        print(json.dumps(tally.result()), flush=True)
        os._exit(0)  # nothing of a peer is worth an orderly end

    if name == "aiokafka":
        asyncio.run(run_aiokafka(bootstrap, topic, tally))
        finished()
    run_faust(name, bootstrap, topic, profile, tally, finished)


if __name__ == "__main__":
    main()
