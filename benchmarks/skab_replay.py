"""SKAB's real measurements through the whole running path, every sample accounted for.

Converts SKAB, starts ``rigcanary serve``, replays everything as fast as it is acknowledged, and
compares what is in the final minute rows with what was sent. The risk of the default model, which
knows nothing of pumps, is plotted beside SKAB's labels: the point is the path.
"""

import argparse
import asyncio
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

QUIET_SECONDS = 40.0
"""The path is done when nothing new came for this long; idle partitions close after 15 s."""
LIMIT_SECONDS = 900.0
TOPICS = (
    "rigcanary.minutes",
    "rigcanary.risks",
    "rigcanary.decisions",
    "rigcanary.dead-letter",
)


def _run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "rigcanary", *arguments], check=True, capture_output=True
    )
    answer: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return answer


async def _collect(kafka: str, expected_samples: int) -> dict[str, list[dict[str, Any]]]:
    """Read the worker's output until every sample is in a row and it has been quiet."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    found: dict[str, list[dict[str, Any]]] = {topic: [] for topic in TOPICS}
    try:
        parts = []
        for topic in TOPICS:
            parts += [TopicPartition(topic, p) for p in sorted(await _partitions(consumer, topic))]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        started = last = time.monotonic()
        while (
            time.monotonic() - last < QUIET_SECONDS and time.monotonic() - started < LIMIT_SECONDS
        ):
            batch = await consumer.getmany(timeout_ms=500)
            for part, records in batch.items():
                found[part.topic] += [orjson.loads(r.value) for r in records if r.value]
                last = time.monotonic()
            if _samples(found) >= expected_samples and not batch and _scored(found):
                break
    finally:
        await consumer.stop()
    return found


async def _partitions(consumer: Any, topic: str) -> set[int]:
    for _ in range(50):
        await consumer.topics()  # asks for the cluster's metadata
        found: set[int] | None = consumer.partitions_for_topic(topic)
        if found:
            return found
        await asyncio.sleep(0.1)
    raise RuntimeError(f"Kafka has no topic {topic}")


def _final_rows(found: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(r["node"], r["minute"]): r for r in found["rigcanary.minutes"]}


def _samples(found: dict[str, list[dict[str, Any]]]) -> int:
    return sum(d["samples"] for row in _final_rows(found).values() for d in row["devices"])


def _scored(found: dict[str, list[dict[str, Any]]]) -> bool:
    risks = {(r["node"], r["minute"]) for r in found["rigcanary.risks"]}
    return risks >= set(_final_rows(found))


def _plot(found: dict[str, list[dict[str, Any]]], labels: Path, out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    def unix(text: str) -> float:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    spans: dict[str, list[tuple[float, float]]] = {}
    with labels.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            spans.setdefault(row["device"], []).append((unix(row["from"]), unix(row["to"])))
    traces: dict[str, dict[int, float | None]] = {}
    for risks in found["rigcanary.risks"]:
        for device in risks["devices"]:
            traces.setdefault(device["device"], {})[risks["minute"]] = device["risk_60m"]
    names = sorted(traces)
    figure, axes = plt.subplots(
        len(names), 1, figsize=(10, 1.1 * len(names) + 1), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[:, 0], names, strict=True):
        minutes = sorted(traces[name])
        first = minutes[0]
        values = [traces[name][m] for m in minutes]
        axis.plot(
            [(m - first) / 60 for m in minutes],
            [float("nan") if v is None else v for v in values],
            color="C0",
            lw=1.2,
        )
        waiting = [(m - first) / 60 for m, v in zip(minutes, values, strict=True) if v is None]
        axis.plot(waiting, [0.0] * len(waiting), ".", color="0.7", ms=2)
        for start, end in spans.get(name, []):
            axis.axvspan((start - first) / 60, (end - first) / 60, color="C3", alpha=0.25, lw=0)
        axis.set_ylim(-0.05, 1.05)
        axis.set_title(name, fontsize=8, loc="left", pad=2)
        axis.tick_params(labelsize=7)
    axes[-1, 0].set_xlabel("minutes since the device's first sample", fontsize=8)
    figure.suptitle(
        "Risk within 60 min (blue; grey dots: not enough data) beside SKAB's induced faults (red)",
        fontsize=9,
    )
    figure.savefig(out, dpi=110)
    plt.close(figure)


def measure(data: Path, out: Path) -> dict[str, Any]:
    """Convert, replay and account; ``out`` receives the plot."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "skab"
        converted = _run("convert", "skab", str(data / "skab"), str(dataset), "--json")
        command = [
            sys.executable,
            "-m",
            "rigcanary",
            "serve",
            "--site",
            "skab",
            "--state",
            f"{folder}/state",
            "--mqtt-port",
            "0",
            "--kafka-port",
            "0",
            "--runner-port",
            "0",
            "--web-port",
            "0",
        ]
        with (out / "serve.log").open("wb") as log:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert server.stdout is not None
            ready = orjson.loads(server.stdout.readline() or b"{}")
            if not ready:
                raise RuntimeError(f"serve did not start; see {out / 'serve.log'}")
            started = time.monotonic()
            sent = _run("replay", str(dataset), "--mqtt", ready["mqtt"], "--speed", "max", "--json")
            found = asyncio.run(_collect(ready["kafka"], converted["samples_out"]))
            seconds = time.monotonic() - started
            alive = server.poll() is None
        finally:
            server.terminate()
            server.wait(60)
        _plot(found, dataset / "labels.csv", out / "skab_risk.png")
    rows = _final_rows(found)
    statuses = Counter(d["status"] for r in found["rigcanary.risks"] for d in r["devices"])
    moves = [d for d in found["rigcanary.decisions"] if d["type"] == "migration.requested"]
    samples = _samples(found)
    return {
        "rows_in": converted["rows_in"],
        "samples_converted": converted["samples_out"],
        "replayed": sent,
        "minute_rows": len(rows),
        "samples_in_minute_rows": samples,
        "every_sample_once": samples == converted["samples_out"],
        "dead_letters": len(found["rigcanary.dead-letter"]),
        "scorings": dict(statuses),
        "rows_never_scored": sum(len(r["devices"]) for r in rows.values()) - sum(statuses.values()),
        "migrations_requested": len(moves),
        "causes": dict(Counter(d["data"]["cause"] for d in moves)),
        "serve_alive_at_end": alive,
        "seconds": round(seconds, 1),
        "plot": str(out / "skab_risk.png"),
    }


def main() -> None:
    """Parse options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("out/skab"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.data / "skab").is_dir():
        print(f"--data {options.data}: there is no folder skab in it", file=sys.stderr)
        raise SystemExit(2)
    figures = measure(options.data, options.out)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    if not figures["every_sample_once"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
