"""Things that look like failures and are none: one function and one line a kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from simulator.effects import Effects
from simulator.streams import Int


@dataclass(frozen=True, slots=True)
class Episode:
    """One harmless thing on a card (``device``), else on all cards of ``node``.

    Times are seconds from the story's start; ``size`` (0–1) scales it.
    """

    kind: str
    node: str
    device: str | None
    start_seconds: float
    duration_seconds: float
    size: float


Apply = Callable[[Effects, Int, float, float], None]
"""Effects, which cards, how far into the episode (seconds), and its size (0–1)."""


@dataclass(frozen=True, slots=True)
class HarmlessKind:
    """One kind: what it does, for how many minutes, how often, and to how much at once.

    ``per_day`` counts episodes a day and card, rig, or row of four rigs, as ``reach`` says.
    """

    name: str
    apply: Apply
    minutes: tuple[float, float]
    per_day: float
    reach: Literal["card", "rig", "row"] = "card"


def _load_step(fx: Effects, i: Int, _: float, size: float) -> None:
    fx["utilization"][i] = 1.0 if size >= 0.5 else 0.0


def _air_conditioning(fx: Effects, i: Int, into: float, size: float) -> None:
    rise = min(into / 1200.0, 1.0)  # a room warms over about twenty minutes
    fx["room_celsius"][i] += (4.0 + 11.0 * size) * rise


def _ecc_burst(fx: Effects, i: Int, _: float, size: float) -> None:
    fx["corrected_per_hour"][i] += 300.0 + 9000.0 * size * size


def _cleaning(fx: Effects, i: Int, into: float, size: float) -> None:
    if into < 600.0:  # the jobs are paused while someone blows the dust out
        fx["utilization"][i] = 0.0
        fx["shaking_g"][i] += 0.05 + 0.3 * size
    fx["blockage"][i] -= 0.05 + 0.15 * size


def _fan_curve(fx: Effects, i: Int, _: float, size: float) -> None:
    fx["duty_offset"][i] += (size - 0.4) * 0.5


def _shaken_rack(fx: Effects, i: Int, into: float, size: float) -> None:
    fx["shaking_g"][i] += (0.1 + 1.2 * size) * (1.0 if int(into / 20.0) % 3 else 0.4)


def _silence(fx: Effects, i: Int, _into: float, _size: float) -> None:
    fx["silent"][i] = 1.0


def _counter_reset(fx: Effects, i: Int, _into: float, _size: float) -> None:
    fx["zero_counters"][i] = 1.0


def _slow_read(fx: Effects, i: Int, _into: float, _size: float) -> None:
    fx["hangs_per_hour"][i] += 1200.0
    fx["hang_seconds"][i] = 5.0


def _glitch(_fx: Effects, _i: Int, _into: float, _size: float) -> None:
    """A sensor that reads nonsense changes nothing real; see :mod:`simulator.rig`."""


HARMLESS: Final[dict[str, HarmlessKind]] = {
    kind.name: kind
    for kind in (
        HarmlessKind("load_step", _load_step, (3, 90), 0.5),
        HarmlessKind("air_conditioning", _air_conditioning, (40, 180), 0.08, "row"),
        HarmlessKind("ecc_burst", _ecc_burst, (0.5, 4), 0.06),
        HarmlessKind("sensor_glitch", _glitch, (0.1, 3), 0.4),
        HarmlessKind("slow_read", _slow_read, (0.2, 2), 0.06),
        HarmlessKind("cleaning", _cleaning, (600, 6000), 0.03, "rig"),
        HarmlessKind("fan_curve", _fan_curve, (60, 3000), 0.06),
        HarmlessKind("shaken_rack", _shaken_rack, (0.5, 8), 0.15, "rig"),
        HarmlessKind("network_gap", _silence, (0.5, 12), 0.3, "rig"),
        HarmlessKind("agent_restart", _silence, (0.3, 1.5), 0.3, "rig"),
        HarmlessKind("counter_reset", _counter_reset, (0.2, 0.2), 0.1, "rig"),
    )
}
