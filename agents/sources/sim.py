"""The source ``sim``: one rig of a scripted story of the simulator."""

from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NoSample
from contract.errors import ConfigError
from simulator.live import SimulatedRig
from simulator.story import demo_story


class SimSource:
    """Plays the rig of the demo story that has this agent's name.

    The story begins at ``clock.start`` (event time), or at the first read.
    """

    name = "sim"
    enumerates = True

    def __init__(self, settings: AgentSettings) -> None:
        sim = settings.sim
        story = demo_story(rigs=sim.rigs, cards=sim.cards, seed=sim.seed, site=settings.site)
        node = sim.story_node
        if node is None:
            # Any machine can play a rig under its own name: it gets the first one.
            node = settings.node if settings.node in story.nodes else story.nodes[0]
        elif node not in story.nodes:
            raise ConfigError(
                f"sim.story_node {node!r} is no rig of the story; "
                f"it has {story.nodes[0]} to {story.nodes[-1]}"
            )
        self._rig = SimulatedRig(story, node)
        self._start = settings.clock.start
        self._offset: float | None = None

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._offset is None:
            begun = now.ts if self._start is None else self._start
            self._offset = now.ts - begun - now.monotonic
        # By the monotonic clock, as the simulator's time cannot go back when the wall's does.
        devices = self._rig.sample(round(now.monotonic + self._offset, 3))
        if not devices:
            raise NoSample("the story cuts this rig off")
        return list(devices)

    def close(self) -> None:
        pass
