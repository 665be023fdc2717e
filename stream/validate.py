"""A checked telemetry message as arrays, with impossible single values made null and counted."""

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.message import Message, check_telemetry
from contract.signals import SIGNAL_NAMES, SIGNALS, STATES
from contract.topics import node_key

_LOW_S: Final = np.array([s.low for s in SIGNALS])
_HIGH_S: Final = np.array([s.high for s in SIGNALS])
_NUMERIC: Final = frozenset((float, int, type(None)))
_DEVICE: Final = itemgetter("device")
_STATE_CODE: Final = {state: code for code, state in enumerate(STATES)}
STATE_OK: Final = _STATE_CODE["ok"]
STATE_LOST: Final = _STATE_CODE["lost"]
STATE_UNRESPONSIVE: Final = _STATE_CODE["unresponsive"]
STATE_UNKNOWN: Final = _STATE_CODE["unknown"]
_INFO_KEYS: Final = ("index", "vendor", "model", "serial", "driver")
_DEFAULT_INTERVAL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One telemetry message: a node's devices at one instant.

    ``x_DS`` is float64 in the order of ``contract.signals.SIGNALS``, NaN where missing;
    ``state_D`` holds indices into ``contract.signals.STATES``; ``proxies`` the places (d, s) of
    ``x_DS`` whose value stands in for a sensor that the card does not have.
    """

    site: str
    node: str
    boot_id: str
    seq: int
    ts_ms: int
    interval_seconds: float
    devices: tuple[str, ...]
    infos: tuple[dict[str, Any], ...]
    state_D: npt.NDArray[np.uint8]
    x_DS: npt.NDArray[np.float64]
    proxies: frozenset[tuple[int, int]] = frozenset()

    @property
    def key(self) -> str:
        """The node's identity, ``site/node``."""
        return node_key(self.site, self.node)

    @property
    def identity(self) -> tuple[str, int]:
        """``(boot_id, seq)``, unique within the node."""
        return self.boot_id, self.seq


def decode(message: Any, received_ms: int, repairs: "Counter[str]") -> Sample:
    """Check a decoded telemetry message and turn it into a :class:`Sample`.

    Values of the wrong type, not finite, or outside the plausible range become NaN;
    ``repairs[signal]`` counts them. ``received_ms`` is the receiver's clock (Unix ms UTC).

    Raises:
        contract.errors.UnusableMessage: when the whole message cannot be used.
    """
    checked = check_telemetry(message, received_ms)
    devices: list[Message] = checked["devices"]
    x_DS = _values(devices, repairs)
    state_D = np.array([_state(d.get("state", "ok")) for d in devices], dtype=np.uint8)
    return Sample(
        site=checked["site"],
        node=checked["node"],
        boot_id=checked["boot_id"],
        seq=checked["seq"],
        ts_ms=round(checked["ts"] * 1000),
        interval_seconds=_interval(checked.get("interval_seconds")),
        devices=tuple(map(_DEVICE, devices)),
        infos=tuple(_info(d) for d in devices),
        state_D=state_D,
        x_DS=x_DS,
        proxies=_proxies(devices),
    )


def _proxies(devices: list[Message]) -> frozenset[tuple[int, int]]:
    found = []
    for d, device in enumerate(devices):
        methods = device.get("methods")
        if isinstance(methods, dict):
            found += [(d, s) for s, name in enumerate(SIGNAL_NAMES) if name in methods]
    return frozenset(found)


def _values(devices: list[Message], repairs: "Counter[str]") -> npt.NDArray[np.float64]:
    rows = [[device.get(name) for name in SIGNAL_NAMES] for device in devices]
    for row in rows:
        if not _NUMERIC.issuperset(map(type, row)):
            _drop_other_types(row, repairs)
    # None becomes NaN; a missing device list becomes [0, S].
    x_DS = np.array(rows, dtype=np.float64).reshape(len(rows), len(SIGNALS))
    # Comparisons with NaN are false: a missing value is never counted as impossible.
    bad_DS = (x_DS < _LOW_S) | (x_DS > _HIGH_S)
    if bad_DS.any():
        for s in np.nonzero(bad_DS)[1]:
            repairs[SIGNAL_NAMES[s]] += 1
        x_DS[bad_DS] = np.nan
    return x_DS


def _drop_other_types(row: list[Any], repairs: "Counter[str]") -> None:
    for s, value in enumerate(row):
        if type(value) not in _NUMERIC:
            row[s] = None
            repairs[SIGNAL_NAMES[s]] += 1


def _state(state: object) -> int:
    return _STATE_CODE.get(state, STATE_UNKNOWN) if isinstance(state, str) else STATE_UNKNOWN


def _interval(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 3600:
        return float(value)
    return _DEFAULT_INTERVAL_SECONDS


def _info(device: Message) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for key in _INFO_KEYS:
        value = device.get(key)
        if isinstance(value, str):
            info[key] = value[:128]
        elif key == "index" and type(value) is int and 0 <= value < 2**31:
            info[key] = value
    return info
