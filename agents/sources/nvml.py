"""The source ``nvml``: NVIDIA cards through the driver's management library.

Each card is read in a lane of its own (``agents.guarded``), and the driver as a whole in one
more, so that a call which hangs costs one card its reading. What a card supports is found once. A
missing library or an unloaded driver is "not here" and is tried again at every tick; a library
that the driver has outgrown is loaded anew, so that a driver can be updated under a running agent.
"""

import _ctypes
import importlib
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from agents.guarded import Lanes, Outcome, deadline_seconds
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed, ReadLate
from agents.sources.nvml_card import Card
from agents.sources.nvml_fields import Codes
from contract.errors import ConfigError

LOOK_AGAIN_SECONDS: Final = 60.0
"""How often a lost card is looked for; the driver itself counts it on."""

_ADVICE: Final = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "is the NVIDIA driver installed?",
    "NVML_ERROR_DRIVER_NOT_LOADED": "is the kernel module nvidia loaded?",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "a driver update waits for its module: "
    "load it anew or start the rig again",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """A card that the driver counts; ``uuid`` is None when it answers not even that."""

    index: int
    handle: Any
    uuid: str | None
    described: DeviceReading


@dataclass(frozen=True, slots=True)
class _Enumeration:
    begun_anew: bool
    count: int
    cards: list[_Found] | None = None
    """None: as many as before, and nobody asked to look again."""


@dataclass(slots=True)
class _Driver:
    """What is known of the driver between ticks."""

    ready: bool = False
    count: int | None = None
    look_at: float | None = None
    present: list[Card] = field(default_factory=list)


class NvmlSource:
    """Reads every NVIDIA card that the driver enumerates."""

    name = "nvml"
    enumerates = True

    def __init__(self, settings: AgentSettings, nvml: Any = None) -> None:
        if settings.input is not None:
            raise ConfigError("the source nvml reads the driver; --input goes with nvidia_smi")
        deadline = deadline_seconds(settings.interval_seconds)
        self._nvml = nvml
        self._codes: Codes | None = None
        self._driver_lane: Lanes[_Enumeration] = Lanes("nvml", deadline)
        self._lanes: Lanes[DeviceReading] = Lanes("nvml", deadline)
        self._driver = _Driver()
        self._cards: dict[str, Card] = {}

    def read(self, now: Instant) -> list[DeviceReading]:
        nvml = self._library()
        self._codes = codes = self._codes or Codes(nvml)
        driver = self._driver
        look = driver.look_at is not None and now.monotonic >= driver.look_at
        count = None if look else driver.count
        begin = partial(_enumerate, nvml, driver.ready, count)
        try:
            enumeration = self._driver_lane.run({"driver": begin})["driver"].get()
        except nvml.NVMLError as error:
            raise self._no_driver(nvml, codes, error) from error
        except ReadLate as error:
            if not driver.present:
                raise ReadLate(f"the NVIDIA driver: {error}") from None
            # It hangs as a whole, or at one card: each card says for itself which.
        else:
            self._take(enumeration, now.monotonic)
        calls = {
            card.name: partial(card.read, nvml, codes, card.handle, now.monotonic)
            for card in driver.present
            if card.handle is not None
        }
        outcomes = self._lanes.run(calls)
        try:
            readings = [_reading(card, outcomes.get(card.name)) for card in driver.present]
        except nvml.NVMLError as error:
            raise self._no_driver(nvml, codes, error) from error
        self._look_again_if_lost(readings, now.monotonic, looked=look)
        return readings

    def close(self) -> None:
        ready, self._driver = self._driver.ready, _Driver()
        # Closing the library under a call that has not returned is not defined.
        if not ready or self._stuck:
            return
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            # The driver went away first, and there is nothing left to give up.
            return

    @property
    def _stuck(self) -> bool:
        return self._lanes.stuck + self._driver_lane.stuck > 0

    def _library(self) -> Any:
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ModuleNotFoundError as error:
                raise NotHere("the Python package nvidia-ml-py is not installed") from error
        return self._nvml

    def _no_driver(self, nvml: Any, codes: Codes, error: Any) -> NotHere | ReadFailed:
        stuck = self._stuck
        self.close()
        if error.value not in codes.no_driver:
            return ReadFailed(f"NVML: {error}")
        if error.value == codes.mismatch:
            if stuck:
                said = "a call is stuck in the library of the old driver; restart the agent"
                return NotHere(f"NVML: {error}; {said}")
            _unload(nvml)
        name = next((n for n in _ADVICE if getattr(nvml, n, None) == error.value), None)
        return NotHere(f"NVML: {error}" + (f"; {_ADVICE[name]}" if name else ""))

    def _take(self, enumeration: _Enumeration, monotonic: float) -> None:
        driver = self._driver
        driver.ready, driver.count = True, enumeration.count
        if enumeration.begun_anew:
            for card in self._cards.values():
                card.driver_was_loaded()
        if enumeration.cards is None:
            return
        driver.look_at = None
        present: dict[int, Card] = {}
        for found in enumeration.cards:
            if found.uuid is not None:
                card = self._cards.setdefault(found.uuid, Card(found.described))
                card.identity, card.handle = found.described, found.handle
                present[found.index] = card
        seen = {card.name for card in present.values()}
        missing = [card for name, card in self._cards.items() if name not in seen]
        for found in enumeration.cards:
            if found.uuid is None:
                present[found.index] = card = self._nameless(found, missing)
                card.handle = None
        driver.present = [present[index] for index in sorted(present)]

    def _nameless(self, found: _Found, missing: list[Card]) -> Card:
        """Which card it is that the driver counts and cannot name: one that is missing.

        Of several the one that had this index; a card that was lost before it was ever seen has
        no name but its place.
        """
        if missing:
            by_index = [card for card in missing if card.identity["index"] == found.index]
            card = (by_index or missing)[0]
            missing.remove(card)
            return card
        name = f"nvidia-{found.index}"
        return self._cards.setdefault(name, Card({**found.described, "device": name}))

    def _look_again_if_lost(
        self, readings: list[DeviceReading], monotonic: float, *, looked: bool
    ) -> None:
        driver = self._driver
        lost = [reading["state"] == "lost" for reading in readings]
        if not any(lost):
            driver.look_at = None
        elif looked and all(lost):
            # Nobody flows on: begin anew with the driver, which may have been reset.
            self.close()
        elif driver.look_at is None:
            driver.look_at = monotonic + LOOK_AGAIN_SECONDS * random.uniform(0.8, 1.2)


def _reading(card: Card, outcome: Outcome[DeviceReading] | None) -> DeviceReading:
    if outcome is None:
        return card.lost()
    if outcome.late_seconds is not None:
        return {**card.identity, "state": "unresponsive"}
    return outcome.get()


def _enumerate(nvml: Any, ready: bool, count: int | None) -> _Enumeration:
    """Open the driver where needed, and list its cards when there are not ``count`` of them.

    Changes nothing: it runs in a lane, and may return when nobody waits for it any more.
    """
    if not ready:
        nvml.nvmlInit()
    now = nvml.nvmlDeviceGetCount()
    if ready and now == count:
        return _Enumeration(begun_anew=False, count=now)
    driver = nvml.nvmlSystemGetDriverVersion()
    cards = [_find(nvml, index, driver) for index in range(now)]
    return _Enumeration(begun_anew=not ready, count=now, cards=cards)


def _find(nvml: Any, index: int, driver: str) -> _Found:
    described: DeviceReading = {"index": index, "vendor": "nvidia"}
    gone = Codes(nvml).lost | Codes(nvml).vague
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        described = {"device": uuid, **described, "model": nvml.nvmlDeviceGetName(handle)}
        described |= _pci_address(nvml, handle)
    except UnicodeDecodeError:  # a dying card's memory
        return _Found(index, None, None, described)
    except nvml.NVMLError as error:
        if error.value not in gone:
            raise
        return _Found(index, None, None, described)
    return _Found(index, handle, uuid, {**described, "driver": driver})


def _unload(nvml: Any) -> None:
    """Let go of the loaded library, so that the next start loads the one now on the disk.

    pynvml keeps it for the life of the process; without this an agent would have to be restarted
    after an update of the driver. Nothing may be inside the library.
    """
    library = getattr(nvml, "nvmlLib", None)
    functions = getattr(nvml, "_nvmlGetFunctionPointer_cache", None)
    if library is None or functions is None:
        return
    functions.clear()
    nvml.nvmlLib = None
    _ctypes.dlclose(library._handle)  # noqa: SLF001  # ctypes has no other name for it


def _pci_address(nvml: Any, handle: Any) -> DeviceReading:
    """Where the kernel's log speaks of the card; nothing where the driver does not tell."""
    try:
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    except (nvml.NVMLError, UnicodeDecodeError):
        return {}
    return {
        "pci_address": (bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus).lower()
    }
