"""Runs the peers on messages like those of the run."""

from dataclasses import replace
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from benchmarks.e2e.child import run_peer
from benchmarks.e2e.load import Bodies, Plan, compose
from benchmarks.e2e.parts import PARTITIONS
from benchmarks.e2e.peers import DESCRIPTIONS, NAMES
from onebox.brokers import create_topics

TOPIC: Final = "rigcanary-benchmark.peer"
MESSAGES: Final = 6_000
MIN_CARDS: Final = 800
_START_SECONDS: Final = 60.0


async def peers(bootstrap: str, profile: str, plan: Plan, seconds: float) -> list[dict[str, Any]]:
    """Figures of each peer; ``seconds`` bounds what each measures."""
    await _fill(bootstrap, profile, plan)
    found = []
    for name in NAMES:
        figures: dict[str, Any] = {"name": name, "what": DESCRIPTIONS[name]}
        answer = await run_peer(
            name, bootstrap, TOPIC, profile, MESSAGES - 200, seconds,
            timeout_seconds=_START_SECONDS + 2 * seconds,
        )  # fmt: skip
        if answer is None or not answer["messages"]:
            found.append(figures | {"error": "did not finish in time"})
            continue
        messages = answer["messages"]
        found.append(
            figures
            | answer
            | {
                "messages_per_second": round(messages / answer["seconds"]),
                "cpu_us_a_message": round(answer["cpu_seconds"] / messages * 1e6, 1),
            }
        )
    return found


async def _fill(bootstrap: str, profile: str, plan: Plan) -> None:
    """One record a message, as a bridge that packs nothing would write them."""
    plan = replace(plan, cards=max(plan.cards, MIN_CARDS))
    nodes, bodies = plan.nodes(), Bodies(plan.cards_a_node)
    await create_topics(bootstrap, {TOPIC: PARTITIONS})
    batch = 1 if profile == "embedded" else 1_000_000
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=batch)
    await producer.start()
    try:
        sent = seq = 0
        while sent < MESSAGES:
            ts = plan.fast_from + seq * plan.interval_seconds
            base = bodies.at(seq * plan.interval_seconds)
            for node in islice(nodes, MESSAGES - sent):
                value = compose(
                    node, base[node.base], boot_id=plan.run, seq=seq, ts=ts,
                    interval=plan.interval_seconds, uncorrected={},
                )  # fmt: skip
                future = await producer.send(TOPIC, value, key=node.key.encode())
                sent += 1
            seq += 1
            await future
        await producer.flush()
    finally:
        await producer.stop()
