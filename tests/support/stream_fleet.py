"""A small fleet's telemetry as Kafka records: repeated, swapped, one node falling silent."""

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import orjson
from aiokafka.partitioner import DefaultPartitioner
from stream_samples import message

HOT_DEVICE = "GPU-rig1-0"


def fleet_messages(
    start_ms: int, *, nodes: int, cards: int, minutes: int, seed: int, site: str
) -> list[tuple[int, str, dict[str, Any]]]:
    """``(tick, node, message)`` in the order of arrival, 3 % repeated, 3 % swapped.

    ``GPU-rig1-0`` heats past the fake predictor's threshold after two thirds of the time;
    ``rig0`` falls silent in the middle of a minute, at half time.
    """
    rng = random.Random(seed)
    ticks = minutes * 12
    arrivals = []
    for tick in range(ticks):
        for n in range(nodes):
            if n == 0 and tick > ticks // 2 + 5:
                continue
            devices = {}
            for c in range(cards):
                hot = (n, c) == (1, 0) and tick > ticks * 2 // 3
                devices[f"GPU-rig{n}-{c}"] = {
                    "state": "ok",
                    "index": c,
                    "temperature_celsius": 92.0 if hot else round(rng.uniform(55, 70), 3),
                    "power_watts": rng.choice([None, round(rng.uniform(90, 180), 2)]),
                    "ecc_corrected_total": tick // 7,
                }
            # Every node ticks at its own millisecond.
            at = start_ms + tick * 5_000 + n * 137
            arrivals.append(
                (tick, f"rig{n}", message(tick, at, devices, node=f"rig{n}", site=site))
            )
    for i in range(len(arrivals) - 1):
        if rng.random() < 0.03:
            arrivals[i], arrivals[i + 1] = arrivals[i + 1], arrivals[i]
    return [a for a in arrivals for _ in range(1 + (rng.random() < 0.03))]


def records(
    arrivals: list[tuple[int, str, dict[str, Any]]], partitions: int, site: str
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """``(tick, [(partition, record value)])``: a tick's messages, packed by partition."""
    partitioner = DefaultPartitioner()
    every = list(range(partitions))
    by_tick: dict[int, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for tick, node, found in arrivals:
        partition = partitioner(f"{site}/{node}".encode(), every, every)
        by_tick[tick][partition].append(found)
    for tick, packed in by_tick.items():
        yield tick, [(p, orjson.dumps({"messages": m})) for p, m in packed.items()]
