"""From what was seen to the one object that is printed."""

from typing import Any

import numpy as np

from benchmarks.e2e.machine import versions
from benchmarks.e2e.meters import percentiles
from benchmarks.e2e.seen import Measured, RunSettings

PATH = ("mqtt_broker", "kafka_broker", "bridge", "worker")
"""Processes under test; the generator and this process are not."""


def figures(seen: Measured) -> dict[str, Any]:
    """All figures of a run, contract names first."""
    settings, meter, observer = seen.settings, seen.meter, seen.observer
    if meter is None or observer is None or seen.snapshot is None or seen.plan is None:
        raise RuntimeError("the run has not been measured")
    sent = seen.snapshot.sent
    scored = sum(
        min(count, observer.messages.get(key, 0))
        for key, count in sent.items()
        if key in observer.scorings
    )
    cpu = meter.cpu_between(seen.start, seen.end)
    minutes = range(int(seen.start), int(seen.end), 60)
    cards_scored = [
        sum(
            observer.scorings[node.key, m].scored
            for node in seen.nodes
            if (node.key, m) in observer.scorings
        )
        for m in minutes
    ]
    latency, missing, others = _latency(seen)
    result: dict[str, Any] = {
        "cards": settings.cards,
        "seconds": round(seen.end - seen.start, 1),
        "messages_sent": sum(sent.values()),
        "messages_scored": scored,
        "lag_start": seen.lags[0].total,
        "lag_end": seen.lags[-1].total,
        "scored_per_minute": round(seen.windows_scored / settings.minutes, 1),
        "cpu_seconds": round(sum(cpu[name] for name in PATH), 2),
        "latency_ms": percentiles(latency),
        "keeps_up": False,
        "benchmark": "end_to_end",
        "history": _history(seen),
        "cards_scored_by_minute": cards_scored,
        "latency_webhooks": len(latency),
        "latency_missing": missing,
        "webhooks_unexpected": others,
        "webhooks_unverified": seen.snapshot.unverified,
        "risk_latency_seconds": _risk_latency(seen),
        "lag": [
            {"second": round(lag.at - seen.start, 1), "messages": lag.messages,
             "minutes_due": lag.minutes_due}
            for lag in seen.lags
        ],
        "generator_late_ms": round(seen.snapshot.late_seconds * 1000, 1),
    }  # fmt: skip
    result |= _throughput(seen)
    result |= {
        "cpu_seconds_by_process": {name: round(value, 2) for name, value in cpu.items()},
        "cpu_cores": round(result["cpu_seconds"] / (seen.end - seen.start), 3),
        "cpu_seconds_of_machine": round(seen.busy, 1),
        "memory": meter.memory_between(seen.start, seen.end),
    }
    noise = 10 + 2 * len(seen.nodes) / settings.interval_seconds
    expected = len(seen.nodes) * 60 / settings.interval_seconds * settings.minutes
    result["lag_noise"] = round(noise)
    result["load_held"] = result["messages_sent"] >= 0.98 * expected
    result["keeps_up"] = bool(
        result["lag_end"] <= result["lag_start"] + noise
        and seen.lags[-1].minutes_due == 0
        and all(count == settings.cards for count in cards_scored)
        and scored == result["messages_sent"]
        and result["load_held"]
    )
    result["peers"] = _ratios(seen.peers, result)
    result["parameters"] = _parameters(seen)
    return result


def _latency(seen: Measured) -> tuple[list[float], int, dict[str, int]]:
    """Sample to webhook in ms, signs without a webhook, and webhooks that no sign explains."""
    snapshot = seen.snapshot
    if snapshot is None:
        return [], 0, {}
    signs = dict(snapshot.signs)
    found: dict[str, float] = {}
    others: dict[str, int] = {}
    for device, kind, cause, at in snapshot.webhooks:
        if kind == "migration.requested" and cause == "threshold" and device in signs:
            found.setdefault(device, (at - signs[device]) * 1000)
        elif kind != "test.ping":
            name = f"{kind} {cause}"
            others[name] = others.get(name, 0) + 1
    return list(found.values()), len(signs) - len(found), others


def _history(seen: Measured) -> dict[str, Any]:
    """How the slow history went in, one message a minute: None where it never got that far."""
    count = len(seen.nodes) * (seen.plan.slow_ticks if seen.plan else 0)
    seconds = seen.slow_seconds
    return {
        "node_minutes": count,
        "seconds": None if seconds is None else round(seconds, 1),
        "node_minutes_per_second": None if not seconds else round(count / seconds, 1),
        "caught_up": seen.caught_up,
    }


def _risk_latency(seen: Measured) -> dict[str, float | None]:
    """From a minute's end until its risk was read from Kafka; 15 s of it are the contract's."""
    observer = seen.observer
    if observer is None:
        return {}
    waits = [
        scoring.first_at - (minute + 60)
        for (_, minute), scoring in observer.scorings.items()
        # The last minute's closes after the load has ended, which is another rule.
        if seen.start - 60 <= minute < seen.end - 60
    ]
    if not waits:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(waits, [50, 99])
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}


def _throughput(seen: Measured) -> dict[str, Any]:
    """Bridge and worker apart: while history is taken in as fast as it goes, and live."""
    settings, meter, plan = seen.settings, seen.meter, seen.plan
    if meter is None or plan is None:
        return {}
    progress, nodes = seen.progress, len(seen.nodes)
    first = nodes * plan.slow_ticks
    last = first + nodes * int(settings.fast_history_minutes * 60 / settings.interval_seconds)
    live = seen.end - seen.start
    found: dict[str, Any] = {}
    for name, at, series in (
        ("bridge", progress.at, progress.bridge),
        ("worker", progress.worker_at, progress.worker),
    ):
        counters = seen.bridge_counters if name == "bridge" else seen.worker_counters
        live_messages = len(seen.lags) > 1 and _between(seen, counters)
        figures: dict[str, Any] = {}
        begin = seen.fast_began
        if begin and series[-1] >= last:
            before = float(np.interp(begin, at, series))
            end = float(np.interp(last, series, at))
            figures["catch_up"] = _rate(
                last - before, end - begin, meter.cpu_between(begin, end)[name], settings
            )
        if live_messages:
            figures["live"] = _rate(
                live_messages, live, meter.cpu_between(seen.start, seen.end)[name], settings
            )
        found[f"{name}_throughput"] = figures
    return found


def _between(seen: Measured, counters: list[dict[str, float]]) -> int:
    """Messages that went through in the measured minutes, by a part's own counter."""
    inside = counters[-len(seen.lags) :]
    return int(inside[-1].get("messages_total", 0) - inside[0].get("messages_total", 0))


def _rate(messages: float, seconds: float, cpu: float, settings: RunSettings) -> dict[str, float]:
    readings = settings.cards_a_node if settings.cards >= settings.cards_a_node else settings.cards
    return {
        "messages": round(messages),
        "messages_per_second": round(messages / seconds, 1),
        "readings_per_second": round(messages * readings / seconds, 1),
        "cpu_us_a_message": round(cpu / messages * 1e6, 1),
        "readings_per_cpu_second": round(messages * readings / cpu) if cpu > 0 else 0,
    }


def _ratios(peers: list[dict[str, Any]], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Each peer's CPU a message over the worker's, which decides, stores and scores as well."""
    ours = result["worker_throughput"].get("catch_up", {}).get("cpu_us_a_message")
    for peer in peers:
        if ours and "cpu_us_a_message" in peer:
            peer["cpu_ratio_to_worker"] = round(peer["cpu_us_a_message"] / ours, 2)
    return peers


def _parameters(seen: Measured) -> dict[str, Any]:
    settings = seen.settings
    return {
        "minutes": settings.minutes,
        "broker": settings.broker,
        "model": "script" if settings.worker_script else settings.model,
        "interval_seconds": settings.interval_seconds,
        "nodes": len(seen.nodes),
        "cards_a_node": settings.cards_a_node,
        "nodes_a_site": settings.nodes_a_site,
        "history_minutes": settings.history_minutes,
        "fast_history_minutes": settings.fast_history_minutes,
        "message_bytes": round(
            seen.snapshot.bytes / max(1, seen.snapshot.published) if seen.snapshot else 0
        ),
        "versions": versions(),
        "machine": seen.machine,
    }
