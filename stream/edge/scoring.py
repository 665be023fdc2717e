"""All windows that are due, scored in one batch in a worker thread."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.decision import Evidence
from stream.cadence import without_undeclared_cadence
from stream.decision_record import Decision
from stream.edge.card_histories import Histories, entered, packed
from stream.edge.closing import Closer
from stream.edge.outbox import Outbox
from stream.edge.partition import Partition
from stream.edge.shared import Predictor, Shared
from stream.gate import DeviceScore
from stream.loads import loads_and_temperatures
from stream.state import NodeState
from stream.watermark import NodeMinute
from stream.window import Windows

log = logging.getLogger(__name__)

MAX_EXPLAINED: Final = 16
"""Alarms explained a batch: in a storm the rest goes out without evidence, not late."""
_DECIDING: Final = 2
"""Place of the deciding risk (``stream.gate.DeviceScore.deciding``) among the three."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    partition: Partition
    key: str
    minute_ms: int
    windows: Windows
    wants_evidence: frozenset[str]
    histories: Histories


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    risks: dict[str, tuple[float, float, float]]
    evidence: dict[str, list[Evidence]]
    histories: list[str]
    challenger: dict[str, float]


class Scorer:
    """Takes node minutes from ``shared.due`` in order and turns them into risks and decisions."""

    def __init__(self, shared: Shared, outbox: Outbox, closer: Closer) -> None:
        self._shared = shared
        self._outbox = outbox
        self._closer = closer
        # One thread: the other core stays with the event loop, and the order stays the same.
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def score_due(self) -> int:
        """Score one batch; returns the number of node minutes, 0 when none is due."""
        shared = self._shared
        if not shared.due:
            return 0
        generation = shared.generation
        jobs = self._next_jobs()
        if jobs:
            started = time.perf_counter()
            results = await asyncio.get_running_loop().run_in_executor(
                self.thread,
                _score,
                shared.predictor,
                shared.challenger,
                jobs,
                shared.decider.threshold,
            )
            shared.metrics.scoring_seconds.observe(time.perf_counter() - started)
            if generation == shared.generation:
                await self._apply(jobs, results)
        self._closer.scored.set()
        return len(jobs)

    def _next_jobs(self) -> list[_Job]:
        shared = self._shared
        jobs: list[_Job] = []
        devices = 0
        while shared.due and devices < shared.settings.score_batch:
            number, (key, minute_ms) = shared.due.popleft()
            partition = shared.partitions.get(number)
            if partition is None:
                continue
            state = partition.states.get(key)
            if state is None or minute_ms <= state.scored_minute_ms:
                continue
            windows = partition.windows.windows(key, minute_ms)
            wants = frozenset(d for d in windows.devices if _may_alarm(state, d))
            stored = tuple(
                known.history if (known := state.devices.get(d)) is not None else ""
                for d in windows.devices
            )
            histories = Histories(key, windows.devices, stored)
            jobs.append(_Job(partition, key, minute_ms, windows, wants, histories))
            devices += len(windows.devices)
        return jobs

    async def _apply(self, jobs: list[_Job], results: list[_Scored]) -> None:
        shared = self._shared
        risk_futures: list[Any] = []
        saves: dict[NodeMinute | str, tuple[Partition, str, NodeState, list[Decision]]] = {}
        for job, result in zip(jobs, results, strict=True):
            state = job.partition.states[job.key]
            newest_DC = job.windows.rows_DTC[:, -1]
            sensors = loads_and_temperatures(newest_DC, shared.decider.policy)
            scores = [
                _device_score(device, share, result.risks.get(device), loaded, celsius)
                for device, share, (loaded, celsius) in zip(
                    job.windows.devices, job.windows.completeness_D.tolist(), sensors, strict=True
                )
            ]
            evidence = defaultdict(list, result.evidence)
            risks, decisions = shared.decider.on_scores(
                state, job.minute_ms, scores, evidence.__getitem__, dry_run=shared.dry_run
            )
            for device, text in zip(job.windows.devices, result.histories, strict=True):
                card = state.devices.get(device)
                if card is not None:
                    card.history = text
            shared.view.risk(risks)
            if result.challenger:
                shared.view.challenger(state.site, state.node, result.challenger)
            for history in shared.histories:
                history.risk(risks)
            for status, count in (
                ("scored", len(result.risks)),
                ("not_enough_data", len(scores) - len(result.risks)),
            ):
                shared.metrics.scorings.labels(status).inc(count)
            risk_futures.append(shared.publisher.risks(job.partition.number, job.key, risks))
            known = saves.get(job.key)
            saves[job.key] = (
                job.partition,
                job.key,
                state,
                (known[3] if known else []) + decisions,
            )
        # One state record a node, whatever number of its minutes this batch scored.
        await asyncio.gather(*(self._outbox.save(*save) for save in saves.values()))
        await asyncio.gather(*risk_futures)


def _may_alarm(state: NodeState, device: str) -> bool:
    known = state.devices.get(device)
    episode = known.episode if known is not None else None
    return episode is None or episode.migration != "requested"


def _device_score(
    device: str,
    completeness: float,
    risks: tuple[float, float, float] | None,
    loaded: bool | None,
    celsius: float | None,
) -> DeviceScore:
    risk_15m, risk_60m, risk_240m = risks or (None, None, None)
    return DeviceScore(device, completeness, risk_15m, risk_60m, risk_240m, loaded, celsius)


def _score(
    predictor: Predictor, challenger: Predictor | None, jobs: Sequence[_Job], threshold: float
) -> list[_Scored]:
    """Runs in the scoring thread; touches nothing but its arguments."""
    every_BTC = without_undeclared_cadence(np.concatenate([job.windows.rows_DTC for job in jobs]))
    every_BS = entered(predictor, [job.histories for job in jobs], every_BTC)
    texts = packed(predictor, every_BS)
    enough_B = np.concatenate([job.windows.enough_D for job in jobs])
    rows_BTC, sums_BS = every_BTC[enough_B], every_BS[enough_B]
    columns: list[npt.NDArray[Any]] = []
    if len(rows_BTC):
        scores = predictor.score(rows_BTC, sums_BS)
        columns = [scores.risk_15m_B, scores.risk_60m_B, scores.risk_240m_B]
    shadow = _shadow(challenger, predictor, rows_BTC, sums_BS)
    results = []
    start, explained, first = 0, 0, 0
    for job in jobs:
        names = [
            d for d, enough in zip(job.windows.devices, job.windows.enough_D, strict=True) if enough
        ]
        risks = {
            name: (float(columns[0][i]), float(columns[1][i]), float(columns[2][i]))
            for i, name in enumerate(names, start)
        }
        evidence: dict[str, list[Evidence]] = {}
        for row_TC, sums_S, name in zip(rows_BTC[start:], sums_BS[start:], names, strict=False):
            if (
                risks[name][_DECIDING] >= threshold
                and name in job.wants_evidence
                and explained < MAX_EXPLAINED
            ):
                evidence[name] = predictor.explain(row_TC, sums_S)
                explained += 1
        last = first + len(job.windows.devices)
        beside = dict(zip(names, shadow[start:], strict=False))
        results.append(_Scored(risks, evidence, texts[first:last], beside))
        first, start = last, start + len(names)
    return results


def _shadow(
    challenger: Predictor | None,
    predictor: Predictor,
    rows_BTC: npt.NDArray[np.float32],
    sums_BS: npt.NDArray[np.float32],
) -> list[float]:
    """The challenger's deciding risks; none when it keeps other histories than the champion."""
    if (
        challenger is None
        or not len(rows_BTC)
        or challenger.history_version != predictor.history_version
    ):
        return []
    return [float(risk) for risk in challenger.score(rows_BTC, sums_BS).risk_240m_B]
