"""Whether a card worked in a minute, and how hot it was: what probation and health ask of a row."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.minute import COLUMN_INDEX
from stream.policy import Policy

_TEMPERATURE: Final = COLUMN_INDEX["temperature_celsius_mean"]
_UTILIZATION: Final = COLUMN_INDEX["utilization_ratio_mean"]
_POWER: Final = COLUMN_INDEX["power_watts_mean"]


def loads_and_temperatures(
    rows_DC: npt.NDArray[Any], policy: Policy
) -> list[tuple[bool | None, float | None]]:
    """Of each minute row: under load, and mean temperature in °C; None where not reported.

    Load is utilisation, or power where the card does not report utilisation.
    """
    utilization_D, power_D = rows_DC[:, _UTILIZATION], rows_DC[:, _POWER]
    known_D = ~np.isnan(utilization_D)
    loaded_D = np.where(
        known_D,
        utilization_D >= policy.load_utilization_ratio,
        power_D >= policy.load_power_watts,
    )
    told_D = known_D | ~np.isnan(power_D)
    return [
        (bool(loaded) if told else None, None if celsius != celsius else celsius)
        for loaded, told, celsius in zip(
            loaded_D.tolist(), told_D.tolist(), rows_DC[:, _TEMPERATURE].tolist(), strict=True
        )
    ]
