"""One reading a card out of those of several sources, and the rig's sensors given to its cards."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from agents.source import EVERY_CARD, ONLY_CARD, DeviceReading

METHODS: Final = (
    "iio-single-reads",
    "hwmon-sample-spread",
    "vcore-sample-spread",
    "power-sample-spread",
    "fan-rpm-jitter",
)
"""What stands in for a sensor, the better first; a sensor itself has no method and beats all."""

_IDENTITY: Final = ("device", "index", "vendor", "model", "serial", "driver", "state", "methods")


def merge(into: dict[str, DeviceReading], reading: DeviceReading) -> None:
    """Add ``reading`` to what is known of its device; of two measured values the first counts.

    A value that stands in for a sensor gives way to a measured one, and to a better stand-in.
    """
    known = into.setdefault(str(reading["device"]), reading)
    if known is not reading:
        _add(known, reading)


def attach(cards: dict[str, DeviceReading], of_rig: Iterable[DeviceReading]) -> Iterator[str]:
    """Add the rig's sensors to the cards they belong to; a line for a person for each left over.

    ``attach`` of a reading is ``*`` (every card), ``?`` (the rig's only card), a device's name, a
    PCI address, an index, or ``VENDOR:INDEX`` where vendors share a rig.
    """
    for reading in of_rig:
        target = str(reading["attach"])
        found = list(_targets(cards, target))
        for card in found:
            if card.get("state", "ok") not in ("lost", "unresponsive"):
                _add(card, {k: v for k, v in reading.items() if k != "attach"})
        sensors = ", ".join(k for k in reading if k not in ("attach", "methods"))
        if found or not sensors:
            continue
        if target == ONLY_CARD:
            yield f"{sensors}: map the sensor to a card, there are {len(cards)} (docs/sensors.md)"
        else:
            yield f"{sensors}: no one card answers to {target!r} (docs/sensors.md)"


def pci_slot(address: str) -> str:
    """``domain:bus:device`` in lower case, the domain of four digits, without the function.

    The kernel, NVML and tt-smi write one card's address with and without a function and with
    domains of four and of eight digits.
    """
    text = address.strip().lower().removeprefix("pci:").split(".")[0]
    parts = text.split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    return ":".join([parts[0].lstrip("0").rjust(4, "0"), *parts[1:]])


def _targets(cards: dict[str, DeviceReading], target: str) -> Iterator[DeviceReading]:
    if target == EVERY_CARD:
        yield from cards.values()
    elif target == ONLY_CARD:
        if len(cards) == 1:
            yield from cards.values()
    elif target in cards:
        yield cards[target]
    elif re.fullmatch(r"(?:[\w-]+:)?\d+", target):
        vendor, _, index = target.rpartition(":")
        same = [
            card
            for card in cards.values()
            if card.get("index") == int(index) and vendor in ("", card.get("vendor"))
        ]
        if len(same) == 1:  # an index that two vendors share names neither
            yield same[0]
    else:
        slot = pci_slot(target)
        for card in cards.values():
            if pci_slot(str(card.get("pci_address", ""))) == slot:
                yield card


def _add(known: DeviceReading, reading: DeviceReading) -> None:
    methods: dict[str, str] = dict(known.get("methods") or {})
    of_new: dict[str, str] = reading.get("methods") or {}
    for key, value in reading.items():
        if key == "methods" or value is None:
            continue
        if key == "state":
            if known.get("state", "unknown") == "unknown":  # who could look knows better
                known[key] = value
            continue
        if key == "details":
            known[key] = {**value, **(known.get(key) or {})}
            continue
        if known.get(key) is not None and not _better(of_new.get(key), methods.get(key), key):
            continue
        known[key] = value
        methods.pop(key, None)
        if key in of_new:
            methods[key] = of_new[key]
    if methods:
        known["methods"] = methods
    else:
        known.pop("methods", None)


def _better(new: str | None, old: str | None, key: str) -> bool:
    if old is None or key in _IDENTITY:
        return False
    return new is None or _rank(new) < _rank(old)


def _rank(method: str) -> int:
    return METHODS.index(method) if method in METHODS else len(METHODS)
