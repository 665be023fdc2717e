"""What ``ipmitool`` prints → named values.

Four forms are read, each as machines print it: ``sdr`` (name | value unit | status), ``sdr elist``
(name | id | status | entity | value unit), ``sensor`` (name | value | unit | status | limits …),
and the blocks of ``sdr -v``; the first three also as CSV (``-c``). Lines that are none of these
(errors of single sensors) are passed over.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agents.source import ReadFailed

_READING: Final = re.compile(
    r"(?P<value>-?\d+(?:\.\d+)?)\s*(?:\(\+/-\s*[\d.]+\)\s*)?(?P<unit>[A-Za-z%][A-Za-z .%]*)"
)
_UNITS: Final = {
    "degrees c": "celsius",
    "volts": "volts",
    "rpm": "rpm",
    "watts": "watts",
    "amps": "amperes",
    "percent": "percent",
    "%": "percent",
    "unspecified": "unspecified",
    "feet": "feet",
}
_USABLE: Final = ("ok", "nc", "cr", "nr", "lnc", "lcr", "lnr", "unc", "ucr", "unr")
"""Status of a sensor that has a value, alarmed or not; ``ns`` and ``na`` have none."""


@dataclass(frozen=True, slots=True)
class IpmiValue:
    """One sensor with a value; ``unit`` is celsius, volts, rpm, watts, amperes or another."""

    name: str
    value: float
    unit: str


def parse(printed: bytes) -> list[IpmiValue]:
    """The sensors that have a value, in order.

    Raises:
        ReadFailed: nothing of it looks like ipmitool's; the message repeats what was printed.
    """
    text = printed.decode("utf-8", errors="replace")
    if "Sensor ID" in text:
        return list(_blocks(text))
    found: list[IpmiValue] = []
    known = False
    for line in text.splitlines():
        fields = [f.strip() for f in line.split("|" if "|" in line else ",")]
        if len(fields) < 3 or not fields[0]:
            continue
        known = True
        value = _of_fields(fields)
        if value is not None:
            found.append(value)
    if not known:
        said = text.strip().splitlines()
        raise ReadFailed(f"ipmitool gave no sensors: {said[0][:200] if said else 'nothing'}")
    return found


def _of_fields(fields: list[str]) -> IpmiValue | None:
    name = fields[0]
    # sdr elist: the value is last, and may have a state after a comma.
    if len(fields) == 5 and fields[2].lower() in (*_USABLE, "ns"):
        return _reading(name, fields[4]) if fields[2].lower() in _USABLE else None
    # sdr -c elist: value and unit are fields of their own at the end, or absent.
    if len(fields) >= 5 and fields[4].lower() in _USABLE and _number(fields[1]) is None:
        return _reading(name, " ".join(fields[5:7]))
    # sensor, and sdr -c: value and unit apart, the status after them.
    if len(fields) >= 4 and fields[3].lower() in _USABLE:
        number = _number(fields[1])
        unit = _UNITS.get(fields[2].lower())
        return None if number is None or unit is None else IpmiValue(name, number, unit)
    if len(fields) >= 3 and fields[2].lower() in _USABLE:
        return _reading(name, fields[1])
    return None


def _blocks(text: str) -> Iterator[IpmiValue]:
    name = ""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key.strip() == "Sensor ID":
            name = re.sub(r"\s*\(0x[0-9a-f]+\)$", "", value.strip())
        elif key.strip() == "Sensor Reading" and name:
            found = _reading(name, value)
            if found is not None:
                yield found


def _reading(name: str, text: str) -> IpmiValue | None:
    found = _READING.match(text.strip())
    if found is None:
        return None
    unit = _UNITS.get(found["unit"].strip().lower())
    return None if unit is None else IpmiValue(name, float(found["value"]), unit)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
