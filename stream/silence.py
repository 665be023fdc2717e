"""Telling a silent node from a dead broker: who speaks, by event time and by arrival."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from stream.policy import Policy

FORGET_MS: Final = 3_600_000
"""A node silent for an hour is not part of its site's count any more."""

BLIND_MS: Final = 90_000
"""Nobody of a site was heard for so long, by arrival: it was not the nodes. More than the cadence
of a minute."""


@dataclass(slots=True)
class _Voice:
    site: str
    partition: int
    newest_ms: int
    received_ms: int
    offline_ms: int | None = None
    """When the node's ``offline`` arrived, until something of it arrives later."""
    reported: bool = False
    restored: bool = False


@dataclass(frozen=True, slots=True)
class _Front:
    """How far what was read reaches: newest event time and newest arrival, in ms."""

    newest_ms: int
    received_ms: int


class SiteWatch:
    """Which nodes fell silent while most of their site speaks.

    All silent at once is a broken observer (broker, bridge, network), never a dead fleet: then
    nothing is reported. A node is held against the others of its own partition, because
    partitions are not read in step; against the whole site only when its partition has nothing
    left to read.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._voices: dict[str, _Voice] = {}
        self._heard_ms: dict[str, int] = {}
        self._back: dict[str, _Front] = {}

    def heard(self, key: str, site: str, ts_ms: int, received_ms: int, partition: int = 0) -> None:
        """A telemetry message arrived; ``received_ms`` is the time stamp that Kafka gave it."""
        if received_ms - self._heard_ms.get(site, received_ms) >= BLIND_MS:
            # The observer was blind. As it sees again some nodes come back before others: the
            # silence of the rest counts from here.
            self._back[site] = _Front(ts_ms, received_ms)
        self._heard_ms[site] = max(received_ms, self._heard_ms.get(site, 0))
        voice = self._voices.get(key)
        if voice is None:
            self._voices[key] = _Voice(site, partition, ts_ms, received_ms)
        elif ts_ms > voice.newest_ms:
            voice.newest_ms, voice.received_ms = ts_ms, max(voice.received_ms, received_ms)
            voice.reported = voice.restored = False
            # Topics are read side by side: telemetry sent before the farewell may be read after.
            if voice.offline_ms is not None and received_ms > voice.offline_ms:
                voice.offline_ms = None

    def restore(self, key: str, site: str, ts_ms: int, partition: int) -> None:
        """The node spoke before this worker took its partition; its silence counts from now."""
        self._voices[key] = _Voice(site, partition, ts_ms, 0, restored=True)

    def said(self, key: str, *, offline: bool, received_ms: int) -> None:
        """The node's status arrived; of a node that never sent telemetry it means nothing."""
        voice = self._voices.get(key)
        if voice is not None:
            voice.offline_ms = received_ms if offline else None

    def remember_reported(self, key: str) -> None:
        """After a restart: the node had been reported as lost already."""
        if key in self._voices:
            self._voices[key].reported = True

    def forget(self, key: str) -> None:
        """The node's partition went to another worker."""
        self._voices.pop(key, None)

    def lost(self, idle: Collection[int] = ()) -> list[tuple[str, int]]:
        """Nodes newly lost, with the newest event time heard from each, in ms.

        ``idle`` are partitions from which everything was read some while ago.
        """
        found: list[tuple[str, int]] = []
        for site in {v.site for v in self._voices.values()}:
            mine = {k: v for k, v in self._voices.items() if v.site == site}
            fronts = _fronts(mine.values())
            front = _Front(
                max(f.newest_ms for f in fronts.values()),
                max(f.received_ms for f in fronts.values()),
            )
            known = {k: v for k, v in mine.items() if v.newest_ms > front.newest_ms - FORGET_MS}
            silent = {
                key: voice
                for key, voice in known.items()
                if self._is_silent(
                    voice, front if voice.partition in idle else fronts[voice.partition]
                )
            }
            if len(silent) * 2 >= len(known):
                continue
            for key, voice in silent.items():
                if not voice.reported:
                    voice.reported = True
                    found.append((key, voice.newest_ms))
        return sorted(found)

    def _is_silent(self, voice: _Voice, front: _Front) -> bool:
        if voice.restored:
            voice.newest_ms = max(voice.newest_ms, front.newest_ms)
            voice.received_ms, voice.restored = front.received_ms, False
        policy = self._policy
        if voice.offline_ms is not None:
            # Its connection broke, or it stopped; one that is back has spoken since.
            needs = policy.node_offline_seconds, policy.node_offline_received_seconds
        else:
            needs = policy.node_silent_seconds, policy.node_silent_received_seconds
        back = self._back.get(voice.site, _Front(0, 0))
        gap_s = (front.newest_ms - max(voice.newest_ms, back.newest_ms)) / 1000
        received_gap_s = (front.received_ms - max(voice.received_ms, back.received_ms)) / 1000
        return gap_s >= needs[0] and received_gap_s >= needs[1]


def _fronts(voices: Iterable[_Voice]) -> dict[int, _Front]:
    """What was read of each partition; nodes that were only restored say nothing of it."""
    fronts: dict[int, _Front] = {}
    for voice in voices:
        newest_ms, received_ms = (0, 0) if voice.restored else (voice.newest_ms, voice.received_ms)
        known = fronts.get(voice.partition, _Front(0, 0))
        fronts[voice.partition] = _Front(
            max(known.newest_ms, newest_ms), max(known.received_ms, received_ms)
        )
    return fronts
