"""The threshold rules on minute rows: for trying a policy on history, which keeps no samples.

A limit counts as passed when the minute's mean passed it, which is stricter than three samples
in a row and laxer than a whole minute of them.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.decision import Cause, Evidence
from contract.minute import COLUMN_INDEX
from stream.policy import Limits
from stream.rules import Sign

RULES: Final = (
    "temperature", "runaway", "ripple", "fan_stopped", "lost", "unresponsive", "ecc_uncorrected",
)  # fmt: skip
_SENSORS: Final = {
    "temperature": "temperature_celsius",
    "runaway": "temperature_rate_celsius_per_second",
    "ripple": "vrm_ripple_volts",
    "fan_stopped": "fan_speed_rpm",
    "ecc_uncorrected": "ecc_uncorrected_total",
}


def hits(rows_MC: npt.NDArray[Any], limits: Limits) -> npt.NDArray[np.uint8]:
    """One bit a rule of :data:`RULES`, the first the lowest, for each minute row of a card."""

    def column(name: str) -> npt.NDArray[Any]:
        return rows_MC[:, COLUMN_INDEX[name]]

    temperature_M = column("temperature_celsius_mean")
    uncorrected_M = column("ecc_uncorrected_total_last")
    known_M = np.where(np.isnan(uncorrected_M), -np.inf, uncorrected_M)
    before_M = np.r_[np.inf, np.where(np.isnan(uncorrected_M), np.inf, uncorrected_M)[:-1]]
    found_RM = np.stack([
        temperature_M >= limits.temperature_celsius,
        (column("temperature_rate_celsius_per_second_mean") >= limits.runaway_celsius_per_second)
        & (temperature_M >= limits.runaway_floor_celsius),
        column("vrm_ripple_volts_mean") >= limits.ripple_volts,
        (column("fan_speed_rpm_mean") < limits.fan_stopped_rpm)
        & (column("fan_duty_ratio_mean") >= limits.fan_stopped_duty_ratio)
        & (column("utilization_ratio_mean") >= limits.fan_stopped_utilization_ratio),
        column("samples_lost") >= limits.lost_samples,
        column("samples_unresponsive") >= limits.unresponsive_samples,
        (known_M > before_M) | (column("ecc_uncorrected_total_increase") > 0),
    ])  # fmt: skip
    bits_R = (1 << np.arange(len(RULES))).astype(np.uint8)
    return np.asarray((found_RM * bits_R[:, None]).sum(0), dtype=np.uint8)


def signs(device: str, bits: int, at_ms: int) -> list[Sign]:
    """The signs that a minute's bits stand for."""
    found = []
    for r, rule in enumerate(RULES):
        if bits >> r & 1:
            cause: Cause = "lost" if rule in ("lost", "unresponsive") else "threshold"
            sensor = _SENSORS.get(rule, "state")
            evidence = Evidence(sensor=sensor, value=None, baseline=None, contribution=1.0)
            found.append(Sign(device, cause, rule, at_ms, 1.0, (evidence,)))
    return found
