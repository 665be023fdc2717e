"""Threshold rules: signs that need no model, found in a single sample (or a few in a row)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from contract.decision import Cause, Evidence
from contract.signals import SIGNAL_NAMES
from stream.policy import FATAL_XIDS, Limits
from stream.validate import STATE_LOST, STATE_UNRESPONSIVE, Sample

_S: Final = {name: i for i, name in enumerate(SIGNAL_NAMES)}
_TEMPERATURE: Final = _S["temperature_celsius"]
_RATE: Final = _S["temperature_rate_celsius_per_second"]
_RIPPLE: Final = _S["vrm_ripple_volts"]
_RPM: Final = _S["fan_speed_rpm"]
_DUTY: Final = _S["fan_duty_ratio"]
_UTILIZATION: Final = _S["utilization_ratio"]
_UNCORRECTED: Final = _S["ecc_uncorrected_total"]

RULES: Final = ("temperature", "runaway", "ripple", "fan_stopped", "lost", "unresponsive")


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that asks for a device's job to be moved. ``device`` None is the whole node."""

    device: str | None
    cause: Cause
    rule: str
    observed_ms: int
    risk: float
    evidence: tuple[Evidence, ...]


@dataclass(slots=True)
class RuleMemory:
    """What the rules remember of a node: rows in a row that hit, last uncorrected count."""

    streaks: dict[str, dict[str, int]] = field(default_factory=dict)
    uncorrected: dict[str, float] = field(default_factory=dict)


def check_sample(
    sample: Sample, memory: RuleMemory, limits: Limits | tuple[Limits, ...]
) -> list[Sign]:
    """Signs of one new sample; ``memory`` is updated. ``limits`` may differ by device.

    Samples must come in the order of their time: the caller leaves out what is older than the
    node's newest.
    """
    signs = list(_uncorrected(sample, memory))
    if isinstance(limits, tuple):
        hit_RD = _hits_by_device(sample, limits)
    else:
        hit_RD = _hits(sample, limits)
    if not hit_RD.any():
        memory.streaks.clear()
        return signs
    streaks: dict[str, dict[str, int]] = {}
    for r, d in zip(*np.nonzero(hit_RD), strict=True):
        own = limits[d] if isinstance(limits, tuple) else limits
        needed = _NEEDED[r](own)
        device, rule = sample.devices[d], RULES[r]
        count = memory.streaks.get(device, {}).get(rule, 0) + 1
        streaks.setdefault(device, {})[rule] = min(count, needed)
        if count >= needed:
            cause: Cause = "lost" if rule in ("lost", "unresponsive") else "threshold"
            signs.append(
                Sign(device, cause, rule, sample.ts_ms, 1.0, _evidence(rule, sample, int(d), own))
            )
    memory.streaks = streaks
    return signs


_NEEDED: Final = tuple(attrgetter(f"{rule}_samples") for rule in RULES)


def _hits_by_device(sample: Sample, limits_D: tuple[Limits, ...]) -> npt.NDArray[np.bool_]:
    hit_RD = np.zeros((len(RULES), len(limits_D)), dtype=np.bool_)
    for limits in set(limits_D):
        mine_D = np.array([own == limits for own in limits_D])
        hit_RD[:, mine_D] = _hits(sample, limits)[:, mine_D]
    return hit_RD


def _hits(sample: Sample, limits: Limits) -> npt.NDArray[np.bool_]:
    x_SD = sample.x_DS.T
    ripple_D = x_SD[_RIPPLE] >= limits.ripple_volts
    for d, s in sample.proxies:
        if s == _RIPPLE:  # a proxy is not in volts of the rail: the model may use it, a limit not
            ripple_D[d] = False
    return np.stack(
        [
            x_SD[_TEMPERATURE] >= limits.temperature_celsius,
            (x_SD[_RATE] >= limits.runaway_celsius_per_second)
            & (x_SD[_TEMPERATURE] >= limits.runaway_floor_celsius),
            ripple_D,
            (x_SD[_RPM] < limits.fan_stopped_rpm)
            & (x_SD[_DUTY] >= limits.fan_stopped_duty_ratio)
            & (x_SD[_UTILIZATION] >= limits.fan_stopped_utilization_ratio),
            sample.state_D == STATE_LOST,
            sample.state_D == STATE_UNRESPONSIVE,
        ]
    )


def _evidence(rule: str, sample: Sample, d: int, limits: Limits) -> tuple[Evidence, ...]:
    sensors = {
        "temperature": (_TEMPERATURE, limits.temperature_celsius),
        "runaway": (_RATE, limits.runaway_celsius_per_second),
        "ripple": (_RIPPLE, limits.ripple_volts),
        "fan_stopped": (_RPM, limits.fan_stopped_rpm),
    }
    if rule not in sensors:
        return (Evidence(sensor="state", value=None, baseline=None, contribution=1.0),)
    s, limit = sensors[rule]
    return (
        Evidence(
            sensor=SIGNAL_NAMES[s], value=float(sample.x_DS[d, s]), baseline=limit, contribution=1.0
        ),
    )


def _uncorrected(sample: Sample, memory: RuleMemory) -> Iterator[Sign]:
    column_D = sample.x_DS[:, _UNCORRECTED]
    if np.isnan(column_D).all():
        return
    for device, value in zip(sample.devices, column_D.tolist(), strict=True):
        if value != value:  # NaN
            continue
        before = memory.uncorrected.get(device)
        memory.uncorrected[device] = value
        if before is not None and value > before:
            yield Sign(
                device,
                "threshold",
                "ecc_uncorrected",
                sample.ts_ms,
                1.0,
                (
                    Evidence(
                        sensor="ecc_uncorrected_total",
                        value=value,
                        baseline=before,
                        contribution=1.0,
                    ),
                ),
            )


def check_event(event: dict[str, object], ts_ms: int) -> Sign | None:
    """The sign that a structural event is, if any: an uncorrected ECC error or a fatal Xid."""
    device, kind, code = event.get("device"), event["type"], event.get("code")
    if not isinstance(device, str):
        return None
    if kind == "ecc_uncorrected":
        sensor = "ecc_uncorrected_total"
    elif kind == "xid" and isinstance(code, int) and code in FATAL_XIDS:
        sensor = f"xid_{code}"
    else:
        return None
    evidence = Evidence(sensor=sensor, value=None, baseline=None, contribution=1.0)
    return Sign(device, "threshold", sensor, ts_ms, 1.0, (evidence,))
