"""The source ``replay``: one rig of a recorded fleet data set, played on the agent's own clock.

For trying an agent, a broker or a dashboard with recorded data. To send a whole data set with its
own time stamps there is ``rigcanary replay``.
"""

from collections.abc import Iterator

from agents.fleet.files import sensor_columns, telemetry_files
from agents.fleet.ordered import ordered_tables, survey
from agents.fleet.ticks import RecordedTick, ticks
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NoSample
from contract.errors import ConfigError


class ReplaySource:
    """Plays the node of the data set that has this agent's name, or its only node.

    The recording's first row falls on the first read. A read gives the newest row that is due;
    where there is none (a gap, or the end) nothing is sent.
    """

    name = "replay"
    enumerates = False

    def __init__(self, settings: AgentSettings) -> None:
        if settings.input is None:
            raise ConfigError("the source replay needs --input, the folder of a fleet data set")
        files = telemetry_files(settings.input)
        sensors = sensor_columns(files)
        found = survey(files)
        names = sorted({node for _, node in found.nodes})
        if len(names) > 1 and settings.node not in names:
            raise ConfigError(
                f"{settings.input} has no node {settings.node!r}; --node one of: "
                f"{', '.join(names[:20])}"
            )
        node = settings.node if settings.node in names else names[0]
        every = ticks(ordered_tables(files, sensors, found), sensors)
        self._ticks: Iterator[RecordedTick] = (t for t in every if t.node[1] == node)
        self._next = next(self._ticks, None)
        self._offset: float | None = None

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._next is None:
            raise NoSample("the recording has ended")
        if self._offset is None:
            self._offset = self._next.ts - now.monotonic
        due: RecordedTick | None = None
        # The thousandth keeps sums of fractions from missing a row that is exactly on time.
        while self._next is not None and self._next.ts <= now.monotonic + self._offset + 1e-3:
            due, self._next = self._next, next(self._ticks, None)
        if due is None:
            raise NoSample("a gap in the recording")
        return due.devices

    def close(self) -> None:
        self._next = None
