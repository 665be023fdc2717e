"""The source ``nvidia_smi``: the tool's XML, live or recorded.

For rigs where Python cannot load NVML, and for captures. The tool runs in a child that is killed
when it hangs. It asks all cards at once, and one that hangs or is lost may leave it without an
answer for any: then each card is asked by a child of its own, until all answer again.
"""

from functools import partial
from pathlib import Path
from typing import Final

from agents.guarded import Lanes, Outcome, source_deadline_seconds
from agents.program import Program
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed, ReadLate
from agents.sources.nvidia_smi_xml import parse, says_lost
from contract.errors import ConfigError

COMMAND: Final = ("nvidia-smi", "-q", "-x")
_IDENTITY: Final = ("device", "index", "vendor", "model", "driver")


class NvidiaSmiSource:
    """Runs ``nvidia-smi`` at each read, or reads the file that ``input`` names."""

    name = "nvidia_smi"
    enumerates = True

    def __init__(self, settings: AgentSettings) -> None:
        self._input = settings.input
        if self._input is not None and not self._input.is_file():
            raise ConfigError(f"--input {self._input}: there is no such file")
        limit = source_deadline_seconds(settings.interval_seconds)
        # The child is killed first, then the lane gives up, then the source as a whole is late.
        self._kill_seconds = 0.75 * limit
        self._whole = Program(COMMAND, self._kill_seconds)
        self._lanes: Lanes[list[DeviceReading]] = Lanes("nvidia-smi", 0.95 * limit)
        self._programs: dict[str, Program] = {}
        self._known: dict[str, DeviceReading] = {}
        self._one_by_one = False

    def read(self, now: Instant) -> list[DeviceReading]:
        if self._input is not None:
            return parse(_read_file(self._input))
        if self._one_by_one:
            return self._read_each()
        try:
            readings = _ask(self._whole)
        except ReadLate as error:
            self._one_by_one = len(self._known) > 1
            raise ReadLate(
                f"{error}; if it is only slow, turn on persistence mode (nvidia-smi -pm 1) "
                "or set a longer interval_seconds"
            ) from error
        except NotHere:
            raise
        except ReadFailed:
            self._one_by_one = len(self._known) > 1
            raise
        self._known = {str(reading["device"]): reading for reading in readings}
        return readings

    def close(self) -> None:
        pass

    def _read_each(self) -> list[DeviceReading]:
        for name in self._known:
            if name not in self._programs:
                self._programs[name] = Program((*COMMAND, "-i", name), self._kill_seconds)
        calls = {name: partial(_ask, self._programs[name]) for name in self._known}
        outcomes = self._lanes.run(calls)
        readings = [_one(self._known[name], outcome) for name, outcome in outcomes.items()]
        self._one_by_one = any(reading["state"] != "ok" for reading in readings)
        return readings


def _one(known: DeviceReading, outcome: Outcome[list[DeviceReading]]) -> DeviceReading:
    identity: DeviceReading = {key: known[key] for key in _IDENTITY if key in known}
    try:
        readings = outcome.get()
    except NotHere:
        raise
    except ReadLate:
        return {**identity, "state": "unresponsive"}
    except ReadFailed as error:
        return {**identity, "state": "lost" if says_lost(str(error)) else "unknown"}
    for reading in readings:
        if reading["device"] == known["device"]:
            # Asked alone, every card is the first.
            return {**reading, "index": known["index"]}
    return {**identity, "state": "lost"}


def _ask(program: Program) -> list[DeviceReading]:
    output = program.run()
    return parse(output.stdout or output.stderr)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReadFailed(f"{path}: {error.strerror}") from error
