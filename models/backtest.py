"""``backtest``: what a policy would have decided on a fleet data set, in event time.

Cards are scored one after the other, as a data set larger than memory asks for; what the decider
needs of each minute (25 bytes) goes to a file a day, and the days are then walked through in
order of time by the worker's own decider. The same input gives the same decisions, byte for byte.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from contract.errors import ConfigError
from contract.minute import COLUMN_INDEX, MINUTE_MS, WINDOW_MINUTES
from models.dataset import Fleet
from models.history import track
from models.serve import Predictor
from models.windows import DeviceMinutes, Outcome, gather, scorable
from stream import minute_signs
from stream.budget import Budget, BudgetGate
from stream.decide import Decider
from stream.decision_record import Decision
from stream.gate import DeviceScore
from stream.loads import loads_and_temperatures
from stream.policy import Policy
from stream.state import NodeState

LATEST_MS: Final = 5 * MINUTE_MS
"""A move this short before the failure comes too late to save the job."""
_CHUNK: Final = 512
_DAY_MINUTES: Final = 1_440
_SITE: Final = "site"
_MINUTE: Final = np.dtype(
    [
        ("minute", "<i4"),
        ("node", "<i4"),
        ("device", "<i4"),
        ("risk", "<f4"),
        ("completeness", "<f4"),
        ("celsius", "<f4"),
        ("loaded", "i1"),
        ("bits", "u1"),
    ]
)


@dataclass(frozen=True, slots=True)
class _Card:
    device: str
    node: int
    outcome: Outcome
    last_ms: int


@dataclass(slots=True)
class _Move:
    at_ms: int
    cause: str
    released_ms: int | None = None


@dataclass(slots=True)
class _Counts:
    moves: dict[str, list[_Move]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    opened: list[str] = field(default_factory=list)
    quarantines: int = 0
    repeats: int = 0
    decisions: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


def backtest(
    dataset: Path,
    predictor: Predictor,
    policy: Policy,
    budget: float,
    write: Callable[[bytes], object] | None = None,
) -> dict[str, Any]:
    """The object that ``rigcanary backtest --json`` prints.

    ``budget`` is the false-alarm budget that the risk threshold is for; ``write`` is given every
    decision as a line of JSON.

    Raises:
        ConfigError: when the data set cannot be used.
    """
    threshold = predictor.threshold(budget)
    with tempfile.TemporaryDirectory(prefix="rigcanary-") as folder, Fleet(dataset) as fleet:
        cards, nodes, minutes = _spill(fleet, predictor, policy, Path(folder))
        if not cards:
            raise ConfigError(f"data set {dataset}: no device has a row before its failure or move")
        walk = _Walk(cards, nodes, policy, threshold, predictor.version, write)
        for path in sorted(Path(folder).glob("day-*.bin")):
            walk.day(np.fromfile(path, dtype=_MINUTE))
        return walk.result() | {"device_days": minutes / _DAY_MINUTES, "threshold": threshold}


def _spill(
    fleet: Fleet, predictor: Predictor, policy: Policy, folder: Path
) -> tuple[list[_Card], list[str], int]:
    cards: list[_Card] = []
    nodes: dict[str, int] = {}
    minutes = 0
    for device in fleet.devices():
        node = nodes.setdefault(device.node, len(nodes))
        table = _table(device, predictor, policy)
        table["node"], table["device"] = node, len(cards)
        cards.append(_Card(device.device, node, device.outcome, device.last_ms))
        minutes += int((device.rows_MC[:, COLUMN_INDEX["samples"]] > 0).sum())
        day_M = table["minute"] // _DAY_MINUTES
        for day in np.unique(day_M):
            with (folder / f"day-{day:08d}.bin").open("ab") as file:
                table[day_M == day].tofile(file)
    return cards, list(nodes), minutes


def _table(device: DeviceMinutes, predictor: Predictor, policy: Policy) -> npt.NDArray[Any]:
    minute_M, rows_MC = device.minute_M, device.rows_MC
    table = np.zeros(len(minute_M), dtype=_MINUTE)
    table["minute"], table["risk"] = minute_M, np.nan
    ends, sums = scorable(minute_M, rows_MC), track(device)
    for at in range(0, len(ends), _CHUNK):
        chunk = ends[at : at + _CHUNK]
        rows_BTC = gather(minute_M, rows_MC, chunk)
        table["risk"][chunk] = predictor.score(rows_BTC, sums.at(minute_M[chunk])).risk_240m_B
    held = np.r_[0, np.cumsum(rows_MC[:, COLUMN_INDEX["samples"]] > 0)]
    begin = np.searchsorted(minute_M, minute_M - (WINDOW_MINUTES - 1))
    table["completeness"] = (held[1:] - held[begin]) / WINDOW_MINUTES
    seen = loads_and_temperatures(rows_MC, policy)
    table["loaded"] = [-1 if loaded is None else loaded for loaded, _ in seen]
    table["celsius"] = [np.nan if celsius is None else celsius for _, celsius in seen]
    table["bits"] = minute_signs.hits(rows_MC, policy.limits)
    return table


class _Walk:
    """The decider and what is counted of its decisions."""

    def __init__(
        self,
        cards: list[_Card],
        nodes: list[str],
        policy: Policy,
        threshold: float,
        version: str,
        write: Callable[[bytes], object] | None,
    ) -> None:
        self._cards = cards
        self._write = write
        self._states = []
        for node in nodes:
            site, _, name = node.rpartition("/")
            self._states.append(NodeState(site or _SITE, name))
        self._by_name = {(s.site, s.node): s for s in self._states}
        self._known: dict[str, int] = {}
        for card in cards:
            site = self._states[card.node].site
            self._known[site] = self._known.get(site, 0) + 1
        gate = BudgetGate(Budget(policy.budget), self._known.__getitem__)
        self._decider = Decider(policy, gate, threshold, version)
        self._counts = _Counts()

    def day(self, table: npt.NDArray[Any]) -> None:
        """Walk through one day's minutes in order of time, node and device."""
        table = table[np.lexsort((table["device"], table["node"], table["minute"]))]
        change = (np.diff(table["minute"]) != 0) | (np.diff(table["node"]) != 0)
        edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(table)]
        for begin, end in pairwise(edges):
            rows = table[begin:end]
            self._take(self._minute(rows))
            if end == len(table) or table["minute"][end] != rows["minute"][0]:
                found = self._decider.next_in_turn(self._state_of, dry_run=False)
                self._take(d for _, decisions in found for d in decisions)

    def _state_of(self, site: str, node: str) -> NodeState | None:
        return self._by_name.get((site, node))

    def _minute(self, rows: npt.NDArray[Any]) -> Iterator[Decision]:
        state = self._states[int(rows["node"][0])]
        minute_ms = int(rows["minute"][0]) * MINUTE_MS
        scores = []
        for _, _, number, risk, completeness, celsius, loaded, bits in rows.tolist():
            device = self._cards[number].device
            if bits:
                signs = minute_signs.signs(device, bits, minute_ms + MINUTE_MS)
                yield from self._decider.on_signs(state, signs, dry_run=False)
            known = None if risk != risk else risk
            scores.append(
                DeviceScore(
                    device,
                    completeness,
                    known,
                    known,
                    known,
                    None if loaded < 0 else bool(loaded),
                    None if celsius != celsius else celsius,
                )
            )
        _, decisions = self._decider.on_scores(
            state, minute_ms, scores, lambda _: [], dry_run=False
        )
        yield from decisions
        for card in state.devices.values():
            if card.episode is not None and card.episode.waits:
                self._counts.held.add(card.episode.episode_id)

    def _take(self, decisions: Any) -> None:
        counts = self._counts
        for decision in decisions:
            line = orjson.dumps(decision, option=orjson.OPT_APPEND_NEWLINE)
            counts.decisions += 1
            counts.digest.update(line)
            if self._write is not None:
                self._write(line)
            data, at_ms = decision["data"], decision["decided_ms"]
            if decision["type"] == "migration.requested":
                move = _Move(at_ms, data["cause"])
                counts.moves.setdefault(data["device"], []).append(move)
            elif decision["type"] == "device.released" and data["device"] in counts.moves:
                counts.moves[data["device"]][-1].released_ms = at_ms
            elif decision["type"] == "device.quarantined":
                counts.quarantines += 1
                counts.repeats += bool(data["repeat_offender"])
            elif decision["type"] == "breaker.opened":
                counts.opened.append(f"{data['decided_at']} {data['site']}: {data['reason']}")

    def result(self) -> dict[str, Any]:
        """The counts."""
        counts = self._counts
        figures = dict.fromkeys(("moves", "saves", "late", "false_moves", "unjudged_moves"), 0)
        causes: dict[str, int] = {}
        out_ms, saved = 0, set()
        for card in self._cards:
            for move in counts.moves.get(card.device, ()):
                kind = _judge(move, card)
                figures["moves"] += 1
                figures[kind] += 1
                causes[move.cause] = causes.get(move.cause, 0) + 1
                out_ms += (move.released_ms or card.last_ms) - move.at_ms
                if kind == "saves":
                    saved.add(card.device)
        failures = [c.device for c in self._cards if c.outcome.failure_ms is not None]
        waiting = [
            name
            for state in self._states
            for name, card in state.devices.items()
            if card.episode is not None and card.episode.waits
        ]
        return {
            "devices": len(self._cards),
            "failures": len(failures),
            **figures,
            "missed": len(failures) - len(saved),
            "moves_by_cause": dict(sorted(causes.items())),
            "budget_hits": len(counts.held),
            "breaker_opened": len(counts.opened),
            "breaker_reasons": counts.opened[:20],
            "waiting_at_end": len(waiting),
            "failed_while_waiting": len(set(waiting) & set(failures)),
            "repeat_offender_quarantines": counts.repeats,
            "out_of_service_hours": round(out_ms / 3_600_000, 3),
            "decisions": counts.decisions,
            "decisions_sha256": counts.digest.hexdigest(),
            "model_version": self._decider.model_version,
        }


def _judge(move: _Move, card: _Card) -> str:
    """A move saves when the card fails while it is out of service for it, in time."""
    failure = card.outcome.failure_ms
    if failure is not None and (move.released_ms is None or move.released_ms > failure):
        return "saves" if move.at_ms <= failure - LATEST_MS else "late"
    if card.outcome.moved_ms is not None and move.released_ms is None:
        return "unjudged_moves"
    return "false_moves"


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [
        f"{result['devices']} cards, {result['device_days']:.1f} device-days, "
        f"{result['failures']} failures",
        f"moves {result['moves']}: {result['saves']} saves, {result['late']} late, "
        f"{result['false_moves']} false, {result['unjudged_moves']} not judged "
        f"({', '.join(f'{k} {v}' for k, v in result['moves_by_cause'].items()) or 'none'})",
        f"failures missed {result['missed']}, of them while their move waited "
        f"{result['failed_while_waiting']}",
        f"budget held {result['budget_hits']} moves; the breaker opened "
        f"{result['breaker_opened']} times; still waiting {result['waiting_at_end']}",
        *(f"  {reason}" for reason in result["breaker_reasons"]),
        f"out of service {result['out_of_service_hours']:.1f} card-hours, "
        f"{result['repeat_offender_quarantines']} quarantines of repeat offenders",
    ]
    return "\n".join(lines)
