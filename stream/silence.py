"""Telling a silent node from a dead broker: who speaks, by event time and by arrival."""

from dataclasses import dataclass
from typing import Final

from stream.policy import Policy

FORGET_MS: Final = 3_600_000
"""A node silent for an hour is not part of its site's count any more."""


@dataclass(slots=True)
class _Voice:
    site: str
    newest_ms: int
    received_ms: int
    offline: bool = False
    reported: bool = False


class SiteWatch:
    """Which nodes fell silent while most of their site speaks.

    All silent at once is a broken observer (broker, bridge, network), never a dead fleet: then
    nothing is reported.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._voices: dict[str, _Voice] = {}

    def heard(self, key: str, site: str, ts_ms: int, received_ms: int) -> bool:
        """A telemetry message arrived. True when the node had been reported as lost."""
        voice = self._voices.get(key)
        if voice is None:
            self._voices[key] = _Voice(site, ts_ms, received_ms)
            return False
        if ts_ms <= voice.newest_ms:
            return False
        voice.newest_ms, voice.received_ms = ts_ms, max(voice.received_ms, received_ms)
        voice.offline = False
        returned, voice.reported = voice.reported, False
        return returned

    def said(self, key: str, *, offline: bool) -> None:
        """The node's status arrived; of a node that never sent telemetry it means nothing."""
        voice = self._voices.get(key)
        if voice is not None:
            voice.offline = offline

    def remember_reported(self, key: str) -> None:
        """After a restart: the node had been reported as lost already."""
        if key in self._voices:
            self._voices[key].reported = True

    def forget(self, key: str) -> None:
        """The node's partition went to another worker."""
        self._voices.pop(key, None)

    def lost(self) -> list[tuple[str, int]]:
        """Nodes newly lost, with the newest event time heard from each, in ms."""
        policy = self._policy
        found: list[tuple[str, int]] = []
        for site in {v.site for v in self._voices.values()}:
            mine = {k: v for k, v in self._voices.items() if v.site == site}
            newest_ms = max(v.newest_ms for v in mine.values())
            received_ms = max(v.received_ms for v in mine.values())
            known = {k: v for k, v in mine.items() if v.newest_ms > newest_ms - FORGET_MS}
            silent = {}
            for key, voice in known.items():
                gap_s = (newest_ms - voice.newest_ms) / 1000
                received_gap_s = (received_ms - voice.received_ms) / 1000
                if voice.offline:
                    # Its connection broke, or it stopped; one that is back has spoken since.
                    needs = policy.node_offline_seconds, policy.node_offline_received_seconds
                else:
                    needs = policy.node_silent_seconds, policy.node_silent_received_seconds
                if gap_s >= needs[0] and received_gap_s >= needs[1]:
                    silent[key] = voice
            if len(silent) * 2 >= len(known):
                continue
            for key, voice in silent.items():
                if not voice.reported:
                    voice.reported = True
                    found.append((key, voice.newest_ms))
        return sorted(found)
