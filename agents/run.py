"""What both ways of running an agent are made of: its clock and its sampler."""

from agents.clock import Clock, ScaledClock, WallClock
from agents.guarded import GuardedSource, source_deadline_seconds
from agents.messages import Envelope
from agents.sampler import Sampler
from agents.settings import AgentSettings
from agents.source import Source
from agents.table import SIMULATED, open_source


def make_clock(settings: AgentSettings) -> Clock:
    """The wall's clock, or the simulated one when the settings ask for it."""
    wall = WallClock()
    clock = settings.clock
    if not clock.simulated:
        return wall
    now = wall.instant().ts
    anchor = now if clock.anchor is None else clock.anchor
    start = anchor if clock.start is None else clock.start
    return ScaledClock(clock.speed, start, anchor, settings.interval_seconds)


def make_sampler(settings: AgentSettings, envelope: Envelope) -> Sampler:
    """A sampler over the sources of the settings.

    Raises:
        ConfigError: a source is not known, or its settings do not suit it.
    """
    sources: list[Source] = []
    for name in settings.sources:
        source = open_source(name, settings)
        if name not in SIMULATED:
            source = GuardedSource(source, source_deadline_seconds(settings.interval_seconds))
        sources.append(source)
    return Sampler(envelope, sources, settings.interval_seconds)
