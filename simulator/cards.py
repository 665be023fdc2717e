"""Card models and second-hand batches, as tables.

Power limits and what a card can measure follow the makers' data sheets and the drivers'
known gaps (consumer cards report no ECC counts and, on Linux, no GDDR6X temperature;
Tenstorrent's tools report no utilisation). Thermal rises are typical of reviews at the power
limit and are randomised from card to card, see :mod:`simulator.population`.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CardModel:
    """One model of card: nominal constants and the sensors it has.

    ``sink_rise_celsius`` is heatsink over inlet air at the power limit with the fan at full
    speed, ``paste_rise_celsius`` die over heatsink at the power limit. ``fan_rpm_max`` is
    ``None`` for a passive card that the chassis cools; it then has no fan sensors.
    """

    name: str
    vendor: str
    power_limit_watts: float
    idle_watts: float
    fan_rpm_max: float | None
    sink_rise_celsius: float
    paste_rise_celsius: float
    throttle_celsius: float
    zero_rpm: bool = False
    ecc: bool = False
    memory_temperature: bool = False
    utilization: bool = True
    core_voltage_volts: float | None = None
    temperature_step_celsius: float = 1.0
    lanes: tuple[int, ...] = (16,)

    @property
    def fan(self) -> bool:
        """Whether the card has a fan of its own."""
        return self.fan_rpm_max is not None


CARD_MODELS: Final[dict[str, CardModel]] = {
    m.name: m
    for m in (
        CardModel("GeForce GTX 1070 Ti", "nvidia", 180, 9, 2900, 23, 13, 83, lanes=(1, 4, 16)),
        CardModel(
            "GeForce RTX 3090", "nvidia", 350, 24, 3200, 22, 15, 86, zero_rpm=True, lanes=(4, 8, 16)
        ),
        CardModel("RTX A6000", "nvidia", 300, 22, 4300, 24, 14, 90, ecc=True),
        CardModel(
            "Tesla V100-PCIE-32GB",
            "nvidia",
            250,
            26,
            None,
            22,
            12,
            83,
            ecc=True,
            memory_temperature=True,
        ),
        CardModel(
            "Blackhole p150a",
            "tenstorrent",
            300,
            55,
            5400,
            24,
            12,
            88,
            ecc=True,
            memory_temperature=True,
            utilization=False,
            core_voltage_volts=0.78,
            temperature_step_celsius=0.0625,
        ),
        CardModel(
            "Blackhole p150b",
            "tenstorrent",
            300,
            55,
            None,
            22,
            12,
            88,
            ecc=True,
            memory_temperature=True,
            utilization=False,
            core_voltage_volts=0.78,
            temperature_step_celsius=0.0625,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Second-hand cards bought together: what they are, how worn, and what they die of.

    ``hazard`` multiplies the chance to fail; ``kinds`` multiplies single kinds of failure;
    ``wear`` (0–1) is how far dust, paste and bearings have gone without being a fault.
    Public records of one site's cards differ fifteenfold between batches.
    """

    name: str
    models: tuple[str, ...]
    hazard: float
    wear: float
    kinds: tuple[tuple[str, float], ...] = ()


BATCHES: Final[tuple[Batch, ...]] = (
    Batch(
        "ex-mining",
        ("GeForce GTX 1070 Ti", "GeForce RTX 3090"),
        1.8,
        0.7,
        (("fan_bearing", 2.0), ("paste_pumpout", 1.5), ("dust", 1.5)),
    ),
    Batch(
        "gaming-returns",
        ("GeForce RTX 3090", "GeForce GTX 1070 Ti"),
        1.0,
        0.4,
        (("pcie_link", 1.5),),
    ),
    Batch("workstation", ("RTX A6000",), 0.6, 0.3, (("vrm_capacitor", 1.5),)),
    Batch(
        "datacentre",
        ("Tesla V100-PCIE-32GB", "RTX A6000"),
        1.2,
        0.5,
        (("memory_decay", 2.0), ("detach", 1.5)),
    ),
    Batch(
        "developer-kits",
        ("Blackhole p150a", "Blackhole p150b"),
        0.8,
        0.2,
        (("detach", 1.5), ("vrm_capacitor", 1.3)),
    ),
)
