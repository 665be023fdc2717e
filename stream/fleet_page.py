"""How the fleet view's devices are listed: shown, searched and sorted."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from stream.fleet_device import VALUE_COLUMNS, DeviceView

Entry = tuple[DeviceView, str, bool]
"""A device, its state in a word, and whether it is there."""


def text(entry: Entry) -> str:
    """What a search looks through, in lower case."""
    device, state, _ = entry
    model = device.info.get("model", "")
    return f"{device.site}/{device.node}/{device.device} {model} {state}".casefold()


def shown(device: DeviceView, state: str, present: bool) -> dict[str, Any]:
    """A device as ``/api/fleet`` shows it."""
    return {
        "site": device.site,
        "node": device.node,
        "device": device.device,
        "index": device.index,
        "model": device.info.get("model"),
        "state": state,
        "present": present,
        "minute": device.minute,
        "status": device.status,
        "completeness": device.completeness,
        "risk": device.risk,
        "risk_15m": device.risk_15m,
        "risk_60m": device.risk_60m,
        "health_score": device.health_score,
        "health_parts": device.health_parts,
        "life": device.life,
        "risks": [None if r is None else round(r, 4) for r in list(device.risks)],
        "values": {name: v for (name, _), v in zip(VALUE_COLUMNS, device.values, strict=True)},
    }


def _by_risk(entry: Entry) -> tuple[Any, ...]:
    device = entry[0]
    risk = device.risk
    return (1.0 if risk is None else -risk), device.site, device.node, device.device


def _by_health(entry: Entry) -> tuple[Any, ...]:
    device = entry[0]
    score = device.health_score
    return (101.0 if score is None else score), device.site, device.node, device.device


def _by_name(entry: Entry) -> tuple[Any, ...]:
    device = entry[0]
    return device.site, device.node, device.device


SORTS: Final[Mapping[str, Callable[[Entry], tuple[Any, ...]]]] = {
    "risk": _by_risk,
    "health": _by_health,
    "name": _by_name,
}
