"""After a start or a rebalance: memory rebuilt from the two tables."""

import asyncio
import logging
from typing import Any, Final

from contract.minute import MINUTE_MS
from contract.topics import node_key
from stream import minutes
from stream import state as node_state
from stream.cadence import at_usual_cadence
from stream.edge.outbox import Outbox
from stream.edge.shared import Shared

log = logging.getLogger(__name__)

YIELD_EVERY: Final = 200
"""Records rebuilt before the loop lets others run (heartbeats have a thread of their own)."""


def forget_partitions(shared: Shared, outbox: Outbox) -> None:
    """Drop everything that is held in memory; unacknowledged records will be read again."""
    shared.generation += 1
    for partition in shared.partitions.values():
        for key, state in partition.states.items():
            shared.watch.forget(key)
            shared.view.drop_node(state.site, state.node)
    shared.partitions.clear()
    shared.due.clear()
    shared.decider.forget()
    outbox.forget()


async def rebuild(shared: Shared, outbox: Outbox, assigned: set[int]) -> None:
    """Windows, watermarks, states, due scorings and undelivered webhooks of ``assigned``."""
    for number in sorted(assigned):
        shared.partition(number)
    count = 0
    for number, data in shared.tables.stored(shared.tables.nodes, assigned):
        state = node_state.unpack(data)
        shared.partitions[number].states[node_key(state.site, state.node)] = state
        shared.live = shared.live or state.live
        count = await _breathe(count)
    unscored: list[tuple[int, tuple[str, int]]] = []
    rows = 0
    newest: dict[str, tuple[int, minutes.MinuteRecord]] = {}
    for number, data in shared.tables.stored(shared.tables.rows, assigned):
        record = minutes.unpack(data)
        partition = shared.partitions[number]
        key = record.key
        usual_DC = at_usual_cadence(minutes.rows(record), record.interval_seconds)
        partition.windows.put(
            key, record.minute_ms, record.devices, usual_DC, record.interval_seconds
        )
        partition.book.restore(key, record.minute_ms + MINUTE_MS)
        state = partition.state(record.site, record.node, key)
        if record.minute_ms > state.scored_minute_ms:
            unscored.append((number, (key, record.minute_ms)))
        if key not in newest or record.minute_ms > newest[key][1].minute_ms:
            newest[key] = (number, record)
        rows += 1
        count = await _breathe(count)
    if rows and not any(len(p.windows) for p in shared.partitions.values()):
        raise RuntimeError(f"{rows} stored minute records gave no window")
    for number, record in newest.values():
        shared.view.minute(minutes.published(record))
        shared.watch.restore(record.key, record.site, record.minute_ms + MINUTE_MS, number)
    shared.due.extend(sorted(unscored, key=lambda item: (item[1][1], item)))
    shared.due_added.set()
    _restore_decider(shared)
    outbox.submit_all()
    log.info(
        "partitions %s: %d minute rows, %d nodes, %d scorings due",
        sorted(assigned),
        rows,
        len(newest),
        len(unscored),
    )


def _restore_decider(shared: Shared) -> None:
    """Count every open move again, and let what waits wait again."""
    states = [state for p in shared.partitions.values() for state in p.states.values()]
    shared.decider.restore(states)
    for state in states:
        if state.node_episode is not None:
            shared.watch.remember_reported(node_key(state.site, state.node))
        for name, device in state.devices.items():
            shared.view.life(state.site, state.node, name, device.state)


async def _breathe(count: int) -> int:
    if count % YIELD_EVERY == 0:
        await asyncio.sleep(0)
    return count + 1


async def stop_flow(app: Any, timeout_seconds: float = 30.0) -> None:
    """Stop Faust's fetcher before it resumes the source partitions.

    ``Recovery.on_recovery_completed`` resumes them while the fetcher runs and seeks afterwards:
    records in between vanish. With the flow stopped here it seeks first and resumes then.

    Raises:
        TimeoutError: when the fetcher does not stop.
    """
    app.consumer.stop_flow()
    await asyncio.wait_for(app.consumer.wait_for_stopped_flow(), timeout_seconds)
