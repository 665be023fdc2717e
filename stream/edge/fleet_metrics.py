"""The fleet's devices in Prometheus' text format (contracts section 8).

Written straight from the fleet view at each scrape: a device that is gone takes its series with
it, and ten thousand cards (230,000 lines) take a fraction of a second where a collector of
prometheus-client takes several.
"""

from collections.abc import Callable, Iterable
from typing import Final

from contract.signals import SIGNALS
from stream.fleet_device import DeviceView
from stream.fleet_view import FleetView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
INFO_LABELS: Final = ("vendor", "model", "serial", "driver")


def escape(value: str) -> str:
    """A label value as the text format wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _key(device: DeviceView) -> str:
    return (
        f'site="{escape(device.site)}",node="{escape(device.node)}",'
        f'device="{escape(device.device)}"'
    )


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}"


def fleet_exposition(view: FleetView) -> bytes:
    """All device series of the view as it is now.

    Sensors carry the value of the newest minute row: the minute's mean of a gauge, the last
    reading of a counter. A sensor that a card lacks has no series. A device that is gone has only
    ``rigcanary_device_present 0``, its state and the time of its last minute, until the view
    forgets it. May run beside the view's writer in another thread.
    """
    states = view.states()
    keyed = [(_key(device), device, state, present) for device, state, present in states]
    here = [(key, device) for key, device, _, present in keyed if present]
    lines: list[str] = []

    def gauge(name: str, text: str, value: Callable[[DeviceView], float | None]) -> None:
        lines.append(_head(name, "gauge", text))
        for key, device in here:
            number = value(device)
            if number is not None:
                lines.append(f"{name}{{{key}}} {number!r}")

    name = "rigcanary_device_present"
    lines.append(_head(name, "gauge", "1 while the device is there, 0 for a while after."))
    lines += [f"{name}{{{key}}} {1 if present else 0}" for key, _, _, present in keyed]
    name = "rigcanary_device_state"
    lines.append(_head(name, "gauge", "1 for the state it is in; other states have no series."))
    lines += [f'{name}{{{key},state="{state}"}} 1' for key, _, state, _ in keyed]
    name = "rigcanary_device_last_sample_timestamp_seconds"
    lines.append(_head(name, "gauge", "End of the newest minute with samples, Unix time."))
    lines += [f"{name}{{{key}}} {device.minute + 60}" for key, device, _, _ in keyed]
    lines.append(_head("rigcanary_device_info", "gauge", "1; what names the card."))
    lines += [_info(key, device) for key, device in here]
    gauge(
        "rigcanary_device_failure_risk_ratio",
        "Probability of failure within 240 minutes, the risk that decides.",
        lambda device: device.risk,
    )
    gauge(
        "rigcanary_device_challenger_risk_ratio",
        "The same by the model that scores in the champion's shadow; it decides nothing.",
        lambda device: device.challenger_risk,
    )
    gauge(
        "rigcanary_device_health_score",
        "0 to 100; under 60 is unhealthy.",
        lambda device: device.health_score,
    )
    gauge(
        "rigcanary_device_window_completeness_ratio",
        "Share of the last 60 minutes that holds samples.",
        lambda device: device.completeness,
    )
    for position, signal in enumerate(SIGNALS):
        name = f"rigcanary_{signal.name}"
        lines.append(_head(name, signal.kind, f"{signal.meaning} ({signal.unit})."))
        lines += [
            f"{name}{{{key}}} {device.values[position]!r}"
            for key, device in here
            if device.values[position] is not None
        ]
    lines += _breakers(view.breakers().items())
    return ("\n".join(lines) + "\n").encode()


def _info(key: str, device: DeviceView) -> str:
    words = [f'{label}="{escape(device.info.get(label, ""))}"' for label in INFO_LABELS]
    index = "" if device.index is None else device.index
    return f'rigcanary_device_info{{{key},index="{index}",{",".join(words)}}} 1'


def _breakers(sites: Iterable[tuple[str, bool]]) -> list[str]:
    name = "rigcanary_breaker_open"
    lines = [_head(name, "gauge", "1 while the circuit breaker of the site is open.")]
    return lines + [f'{name}{{site="{escape(site)}"}} {int(is_open)}' for site, is_open in sites]
