"""A champion that is promoted while the worker runs serves from the next minute on.

The challenger scores beside it in its shadow: both risks are exported, only the champion's
decides. What cannot be loaded is said once and counted; the model that serves goes on.
"""

import asyncio
import logging
from typing import Final, Protocol

from contract.errors import ConfigError
from stream.edge.shared import Predictor, Shared

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 10.0


class Versions(Protocol):
    """What a registry says."""

    @property
    def champion(self) -> str | None: ...
    @property
    def challenger(self) -> str | None: ...


class Source(Protocol):
    """A registry, as ``models.registry_source`` reads it."""

    def changed(self) -> Versions | None: ...
    def load(self, version: str) -> Predictor: ...


class ModelWatch:
    """Looks at the registry now and then, and swaps the predictors of ``shared``."""

    def __init__(self, shared: Shared, source: Source) -> None:
        self._shared = shared
        self._source = source
        self._complaint = ""

    async def look(self) -> bool:
        """Look once; True when another model serves from now on."""
        try:
            versions = await asyncio.to_thread(self._source.changed)
            if versions is None:
                return False
            champion, challenger = await asyncio.to_thread(self._load, versions)
        except ConfigError as error:
            self._complain(str(error))
            return False
        self._complaint = ""
        self._shared.challenger = challenger
        self._shared.metrics.set_challenger(challenger.version if challenger else "")
        self._shared.view.forget_challenger()
        if challenger is not None:
            log.info("challenger %s scores in the champion's shadow", challenger.version)
        if champion is None:
            return False
        self._serve(champion)
        return True

    def _load(self, versions: Versions) -> tuple[Predictor | None, Predictor | None]:
        """Predictors that are new; a champion that serves already is not loaded again."""
        serving = self._shared.predictor.version
        champion = versions.champion
        new = self._source.load(champion) if champion and champion != serving else None
        wanted = versions.challenger
        running = self._shared.challenger
        if running is not None and running.version == wanted:
            return new, running
        return new, self._source.load(wanted) if wanted else None

    def _serve(self, predictor: Predictor) -> None:
        shared = self._shared
        threshold = predictor.threshold(shared.settings.false_alarms_per_device_day)
        log.info(
            "model %s serves instead of %s: threshold %.4f",
            predictor.version,
            shared.predictor.version,
            threshold,
        )
        shared.predictor = predictor
        shared.decider.threshold = threshold
        shared.decider.model_version = predictor.version
        shared.metrics.set_model_version(predictor.version)

    def _complain(self, text: str) -> None:
        self._shared.metrics.errors.labels("model").inc()
        if text != self._complaint:
            log.error("the model that serves stays: %s", text)
            self._complaint = text
