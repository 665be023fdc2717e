"""One rig of a story, sampled as an agent samples a real one."""

from typing import Any, Final

from contract.signals import SIGNAL_NAMES, STATES
from simulator.story import Story
from simulator.world import World

_RATE: Final = SIGNAL_NAMES.index("temperature_rate_celsius_per_second")
_NAMES: Final = tuple(name for i, name in enumerate(SIGNAL_NAMES) if i != _RATE)


class SimulatedRig:
    """The cards of ``node`` as the story tells.

    Deterministic in story, node and the sequence of instants asked for; the cadence is free
    and ticks may be skipped.

    Raises:
        ConfigError: when the story has no such node.
    """

    def __init__(self, story: Story, node: str) -> None:
        self._world = World(story, (node,))
        self._heads = [
            {
                "device": card.device,
                "index": card.index,
                "vendor": card.card_model.vendor,
                "model": card.model,
            }
            for card in self._world.cards
        ]

    def sample(self, at_seconds: float) -> list[dict[str, Any]]:
        """The device entries of a telemetry message ``at_seconds`` from the story's start.

        Every signal but dT/dt, which is the agent's to compute; ``None`` where the card has
        no such sensor or the read failed. A failed card stays listed as ``lost``. An empty
        list: the rig is cut off, nothing would be sent.

        Raises:
            ValueError: when ``at_seconds`` lies before the sample before.
        """
        sample = self._world.sample(at_seconds)
        if sample.silent_D.any():
            return []
        rows = sample.values_SD.T.tolist()
        devices = []
        for head, row, state in zip(self._heads, rows, sample.state_D.tolist(), strict=True):
            del row[_RATE]
            readings = (None if value != value else value for value in row)
            devices.append(
                {**head, "state": STATES[state], **dict(zip(_NAMES, readings, strict=True))}
            )
        return devices
