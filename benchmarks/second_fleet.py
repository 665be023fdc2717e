"""A second, independent generator of failing fleets, to judge predictors that never saw it.

It shares no code and no constant with :mod:`simulator`: one thermal mass and a fast junction a
card, fans that hold a target, failures that grow by other laws. It writes a fleet data set
(contracts section 4): ``python benchmarks/second_fleet.py OUT --seed 1 --json``.

Shapes: K ticks, D cards, N rigs. The sizes of the precursors are chosen, not measured.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float64]

START_MS: Final = 1_800_000_000_000
SLOW_KINDS: Final = (
    "fan_bearing",
    "fan_stop",
    "vrm_capacitor",
    "memory_decay",
    "paste_pumpout",
    "dust",
)
KINDS: Final = (*SLOW_KINDS, "detach", "detach_unannounced", "sudden")
WEIGHTS: Final = (0.17, 0.1, 0.15, 0.15, 0.17, 0.08, 0.1, 0.04, 0.04)
RAMP_MINUTES: Final = {
    "fan_bearing": (60, 300),
    "fan_stop": (30, 110),
    "vrm_capacitor": (60, 320),
    "memory_decay": (50, 280),
    "paste_pumpout": (80, 360),
    "dust": (100, 420),
    "detach": (25, 150),
    "detach_unannounced": (1, 2),
    "sudden": (1, 2),
}


class Fleet:
    """Constants and time courses of one fleet, all drawn from ``seed``."""

    def __init__(self, seed: int, cards: int, days: float, interval: float, share: float) -> None:
        self.rng = np.random.default_rng([77, seed])
        self.count, self.interval = cards, interval
        self.at_K = np.arange(0, days * 86400, interval)
        self.node_D = np.arange(cards) // 6
        self.nodes = int(self.node_D[-1]) + 1
        self._constants()
        self._fate(share)
        self._harmless()

    def _log(self, low: float, high: float, count: int | None = None) -> Array:
        u = self.rng.random(count or self.count)
        return np.asarray(low * (high / low) ** u)

    def _constants(self) -> None:
        rng, count = self.rng, self.count
        self.limit_W = self._log(110, 400)
        self.idle_W = self._log(8, 45)
        self.body_R = self._log(22, 40) / self.limit_W  # K/W at full air flow
        self.junction_R = self._log(6, 20) / self.limit_W
        self.body_s = self._log(80, 260)
        self.target_C = rng.uniform(58, 76, count)
        self.rpm_max = self._log(1900, 5600)
        self.duty_floor = rng.uniform(0.2, 0.45, count)
        self.manual = rng.random(count) < 0.15  # the owner fixed the fan
        self.imbalance_g = self._log(0.04, 0.5)
        self.ripple_V = self._log(0.012, 0.09)
        self.ripple_load = rng.uniform(0.3, 1.5, count)
        self.background = self._log(0.002, 0.6)  # corrected errors an hour
        self.order = rng.choice([1.0, 1.0, 2.0, 7.0], count)
        self.lanes = rng.choice([1.0, 4.0, 8.0, 16.0], count)
        self.room_C = rng.uniform(17, 31, self.nodes)
        self.swing_C = rng.uniform(0.5, 4, self.nodes)
        self.rail_V = rng.normal(12.08, 0.08, self.nodes)
        self.loss = self._log(1e-4, 4e-3, self.nodes)
        by_card, by_rig = rng.random((4, count)), rng.random((4, self.nodes))
        self.has = {
            "ecc": by_card[0] < 0.5,
            "memory": by_card[1] < 0.4,
            "fan": by_card[2] < 0.85,
            "busy": by_card[3] < 0.85,
            "vibration": (by_rig[0] < 0.6)[self.node_D],
            "ripple": (by_rig[1] < 0.7)[self.node_D],
            "volts": (by_rig[2] < 0.7)[self.node_D],
            "inlet": (by_rig[3] < 0.65)[self.node_D],
        }

    def _fate(self, share: float) -> None:
        rng = self.rng
        self.kind = np.full(self.count, "", dtype=object)
        self.failed_s = np.full(self.count, np.inf)
        self.ramp_s = np.full(self.count, 60.0)
        self.power = rng.uniform(0.7, 2.4, self.count)  # how damage grows
        self.size = rng.random(self.count)
        days_s = float(self.at_K[-1])
        for d in rng.choice(self.count, round(share * self.count), replace=False):
            kind = str(rng.choice(KINDS, p=WEIGHTS))
            if kind == "memory_decay" and not self.has["ecc"][d]:
                kind = "paste_pumpout"
            if kind == "vrm_capacitor" and not self.has["ripple"][d]:
                kind = "dust" if rng.random() < 0.3 else "fan_bearing"
            if kind in ("fan_bearing", "fan_stop") and not self.has["fan"][d]:
                kind = "paste_pumpout"
            if kind == "fan_bearing" and not self.has["vibration"][d] and rng.random() < 0.7:
                kind = "fan_stop"
            low, high = RAMP_MINUTES[kind]
            self.kind[d] = kind
            self.failed_s[d] = rng.uniform(min(3 * 3600, days_s / 2), days_s)
            self.ramp_s[d] = 60 * low * (high / low) ** rng.random()

    def _harmless(self) -> None:
        rng, days = self.rng, float(self.at_K[-1]) / 86400
        self.events: list[tuple[str, npt.NDArray[np.int64], float, float, float]] = []
        for kind, per_day, low, high, whole in (
            ("hvac", 0.12, 30, 150, True),
            ("gap", 0.4, 0.5, 15, True),
            ("shake", 0.15, 0.5, 6, True),
            ("reset", 0.15, 0.4, 0.4, True),
            ("clean", 0.05, 8, 20, True),
            ("step", 0.6, 3, 90, False),
            ("burst", 0.08, 0.5, 3, False),
            ("glitch", 0.3, 0.3, 2, False),
            ("curve", 0.08, 60, 1500, False),
            ("slow", 0.08, 0.3, 2, False),
        ):
            for place in range(self.nodes if whole else self.count):
                who = np.flatnonzero(self.node_D == place) if whole else np.array([place])
                for _ in range(rng.poisson(per_day * days)):
                    begin = rng.uniform(0, days * 86400)
                    length = 60 * low * (high / low) ** rng.random()
                    self.events.append((kind, who, begin, begin + length, rng.random()))

    def _load(self) -> Array:
        """Utilisation [K, D]: training with dips, serving that wanders, idle hours."""
        rng = self.rng
        busy = np.zeros((len(self.at_K), self.count))
        for d in range(self.count):
            k = 0
            while k < len(self.at_K):
                steps = max(3, int(rng.lognormal(np.log(5000), 1.0) / self.interval))
                span = slice(k, min(k + steps, len(self.at_K)))
                n = span.stop - span.start
                what = rng.random()
                if what < 0.55:
                    level = rng.uniform(0.7, 1.0)
                    every = rng.uniform(120, 2400)
                    dip = (self.at_K[span] % every) < rng.uniform(5, 0.15 * every)
                    busy[span, d] = level * np.where(dip, rng.uniform(0, 0.8), 1.0)
                elif what < 0.8:
                    knots = np.interp(
                        np.arange(n),
                        np.arange(0, n + 30, 30),
                        rng.random(len(range(0, n + 30, 30))),
                    )
                    busy[span, d] = 0.1 + 0.7 * knots
                k += steps
        return np.clip(busy, 0, 1)

    def _grown(self, kind: str, at: float) -> Array:
        """How far the damage of ``kind`` has come (0–1) of every card."""
        x = np.clip(1 - (self.failed_s - at) / self.ramp_s, 0, 1) * (self.kind == kind)
        return np.asarray(x**self.power)

    def run(self) -> pd.DataFrame:
        """Telemetry in the vocabulary of contracts section 1."""
        count, busy_KD = self.count, self._load()
        self.body_C = self.room_C[self.node_D] + 20
        self.duty, self.duty_I = np.full(count, 0.4), np.zeros(count)
        self.corrected, self.uncorrected = np.zeros(count), np.zeros(count)
        self.hanging_until = np.full(count, -1.0)
        self.before = np.full(count, np.nan)
        self.wobble = self.rng.uniform(0, 2 * np.pi, (count, 2))
        return self._frame([self._tick(at, busy_KD[k].copy()) for k, at in enumerate(self.at_K)])

    def _impose(self, at: float, busy: Array) -> dict[str, Array]:
        """What harmless things do to each card at this instant; ``busy`` is changed in place."""
        names = ("hvac", "shake", "clean", "burst", "curve", "slow", "gap", "reset", "glitch")
        now = {name: np.zeros(self.count) for name in names}
        for kind, who, begin, end, size in self.events:
            if begin <= at < end:
                if kind == "step":
                    busy[who] = float(size > 0.4)
                    continue
                now[kind][who] = 0.3 + size
                if kind == "clean":
                    busy[who] = 0
        return now

    def _turn(self, at: float, core: Array, now: dict[str, Array]) -> Array:
        """Move the fans on; returns their true speed."""
        bearing, stop = self._grown("fan_bearing", at), self._grown("fan_stop", at)
        error = core - self.target_C
        self.duty_I = np.clip(self.duty_I + error * self.interval * 4e-5, 0, 0.7)
        wanted = np.clip(self.duty_floor + self.duty_I + 0.012 * error, self.duty_floor, 1)
        changed = 0.25 * (now["curve"] - 0.8) * (now["curve"] > 0)
        wanted = np.clip(np.where(self.manual, 0.7, wanted) + changed, 0.1, 1)
        self.duty = self.duty + (wanted - self.duty) * min(1.0, self.interval / 15)
        beat = np.sin(at / 97 + self.wobble[:, 0]) + np.sin(at / 41 + self.wobble[:, 1])
        halted = (stop > 0.35 + 0.4 * self.size) | ((stop > 0) & (beat > 1.8 - 1.5 * stop))
        return np.asarray(self.rpm_max * self.duty * (1 - 0.15 * bearing) * ~halted)

    def _heat(
        self, at: float, busy: Array, now: dict[str, Array]
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Move the heat on: core (°C), inlet (°C), power and the rig's power (W), fan speed."""
        paste, dust = self._grown("paste_pumpout", at), self._grown("dust", at)
        hour = at / 3600
        swing = self.swing_C * np.sin(hour / 24 * 2 * np.pi) + 0.5 * np.sin(hour * 2.1)
        watts = self.idle_W + (self.limit_W - self.idle_W) * busy
        shared = np.bincount(self.node_D, watts, self.nodes).astype(np.float64)[self.node_D]
        inlet = (self.room_C + swing)[self.node_D] + 9 * now["hvac"] + 0.002 * shared
        junction = self.junction_R * (1 + (0.9 + 2.0 * self.size) * paste)
        core = self.body_C + junction * watts
        watts = np.maximum(self.idle_W, watts * np.clip(1 - 0.08 * (core - 87), 0.3, 1))
        rpm = self._turn(at, core, now)
        flow = np.where(self.has["fan"], 0.05 + rpm / self.rpm_max, 0.6)
        flow = flow * (1 - (0.35 + 0.4 * self.size) * dust) * (1 + 0.1 * now["clean"])
        goal = np.minimum(inlet + watts * self.body_R * (0.35 + 0.65 * flow**-0.6), 104)
        self.body_C += (goal - self.body_C) * -np.expm1(-self.interval / self.body_s)
        core = self.body_C + junction * watts + 0.3 * self.rng.standard_normal(self.count)
        return core, inlet, watts, shared, rpm

    def _vibration(
        self, at: float, rpm: Array, now: dict[str, Array]
    ) -> tuple[Array, Array, Array]:
        """Line (Hz), strength (g) and how worn the bearing is (0–1)."""
        bearing = self._grown("fan_bearing", at)
        own = self.imbalance_g * (rpm / self.rpm_max) ** 2
        own = own * (1 + (1.2 + 4 * self.size) * bearing) + 0.05 * bearing * (rpm > 0)
        shaken = 0.8 * now["shake"] + 0.2 * now["clean"]
        strength = (own + shaken) * np.exp(0.09 * self.rng.standard_normal(self.count))
        edge = 0.2 + 0.5 * self.size + 0.1 * self.rng.standard_normal(self.count)
        line = np.where(rpm > 0, rpm / 60 * np.where(bearing > edge, 3.05, self.order), 100.0)
        return np.round(line / 0.5) * 0.5, 0.008 + strength, bearing

    def _errors(self, at: float, now: dict[str, Array]) -> None:
        memory = self._grown("memory_decay", at)
        rate = self.background + 900 * now["burst"]
        bursts = self.rng.gamma(0.6, 1 / 0.6, self.count)
        rate = (rate + (18 * 25**self.size) * memory * bursts) * self.interval / 3600
        self.corrected += self.rng.poisson(rate)
        late = np.maximum(memory - 0.85, 0) * self.interval / 3600
        self.uncorrected += self.rng.poisson(30 * late)
        reset = now["reset"] > 0
        self.corrected[reset], self.uncorrected[reset] = 0, 0

    def _hanging(self, at: float, now: dict[str, Array]) -> npt.NDArray[np.bool_]:
        """Whose reads fail at this instant."""
        detach = self._grown("detach", at)
        hourly = (4 + (20 + 60 * self.size) * detach) * (detach > 0) + 1500 * (now["slow"] > 0)
        begins = self.rng.random(self.count) < hourly * self.interval / 3600
        length = self.rng.exponential(8 + 30 * self.size[begins])
        self.hanging_until[begins] = at + length
        return np.asarray(self.hanging_until > at)

    def _tick(self, at: float, busy: Array) -> dict[str, Any]:
        """All cards at one instant, as if every sensor were there."""
        now, count, rng = self._impose(at, busy), self.count, self.rng
        core, inlet, watts, shared, rpm = self._heat(at, busy, now)
        hertz, strength, bearing = self._vibration(at, rpm, now)
        ripple = self.ripple_V * (0.5 + self.ripple_load * watts / self.limit_W)
        ripple *= np.expm1(np.log1p(0.9 + 3 * self.size) * self._grown("vrm_capacitor", at)) + 1
        ripple *= np.exp(0.07 * rng.standard_normal(count))
        self._errors(at, now)
        hanging = self._hanging(at, now)
        dropped = (rng.random(self.nodes) < self.loss)[self.node_D]
        vanished = hanging & (self.size > 0.6)
        core = np.round(core)
        rate = (core - self.before) / self.interval
        self.before = core
        rail = self.rail_V[self.node_D] - 4e-4 * watts - 6e-5 * shared
        return {
            "keep": (now["gap"] == 0) & ~vanished & ~dropped & (at < self.failed_s),
            "state": np.where(hanging, "unresponsive", "ok"),
            "hanging": hanging,
            "ts": np.full(count, START_MS + round(at * 1000)),
            "card": np.arange(count),
            "temperature_celsius": np.where(now["glitch"] > 0, 0, core),
            "temperature_rate_celsius_per_second": rate,
            "memory_temperature_celsius": np.round(self.body_C + 9 * busy),
            "ecc_corrected_total": self.corrected.copy(),
            "ecc_uncorrected_total": self.uncorrected.copy(),
            "vrm_voltage_volts": rail + 0.008 * rng.standard_normal(count),
            "vrm_ripple_volts": ripple,
            "fan_speed_rpm": np.round(
                rpm * (1 + (0.005 + 0.04 * bearing) * rng.standard_normal(count))
            ),
            "fan_duty_ratio": np.round(self.duty, 2),
            "fan_vibration_hertz": hertz,
            "fan_vibration_g": np.round(strength, 3),
            "power_watts": watts * (1 + 0.015 * rng.standard_normal(count)),
            "utilization_ratio": np.round(busy, 2),
            "pcie_link_width": self.lanes,
            "pcie_link_width_max": np.full(count, 16.0),
            "ambient_celsius": np.round(inlet + 0.1 * rng.standard_normal(count), 1),
        }

    def _frame(self, frames: list[dict[str, Any]]) -> pd.DataFrame:
        keep = np.concatenate([f["keep"] for f in frames])
        table = {name: np.concatenate([f[name] for f in frames])[keep] for name in frames[0]}
        hanging, card = table.pop("hanging"), table.pop("card")
        del table["keep"]
        for group, names in (
            ("ecc", ("ecc_corrected_total", "ecc_uncorrected_total")),
            ("memory", ("memory_temperature_celsius",)),
            ("fan", ("fan_speed_rpm", "fan_duty_ratio")),
            ("busy", ("utilization_ratio",)),
            ("volts", ("vrm_voltage_volts",)),
            ("ripple", ("vrm_ripple_volts",)),
            ("inlet", ("ambient_celsius",)),
        ):
            for name in names:
                table[name][~self.has[group][card]] = np.nan
        for name in ("fan_vibration_hertz", "fan_vibration_g"):
            table[name][~(self.has["vibration"] & self.has["fan"])[card]] = np.nan
        for values in table.values():
            if values.dtype == np.float64:
                values[hanging] = np.nan
        table["ts"] = pd.to_datetime(table["ts"], unit="ms", utc=True)
        devices = np.array([f"card-{d:04d}" for d in range(self.count)])
        rigs = np.array([f"host{n:03d}" for n in self.node_D])
        return pd.DataFrame({"node": rigs[card], "device": devices[card], **table})


def write(out: Path, fleet: Fleet) -> dict[str, Any]:
    """Write the data set; returns what it holds."""
    out.mkdir(parents=True, exist_ok=True)
    frame = fleet.run()
    frame.to_parquet(out / "telemetry.parquet", index=False, compression="zstd")
    dying = np.flatnonzero(np.isfinite(fleet.failed_s))
    pd.DataFrame(
        {
            "device": [f"card-{d:04d}" for d in dying],
            "failed_at": START_MS / 1000 + np.round(fleet.failed_s[dying], 3),
            "kind": fleet.kind[dying],
        }
    ).to_csv(out / "failures.csv", index=False)
    kinds, numbers = np.unique(fleet.kind[dying].astype(str), return_counts=True)
    by_kind = dict(zip(kinds.tolist(), numbers.tolist(), strict=True))
    return {"cards": fleet.count, "rows": len(frame), "failures": len(dying), "by_kind": by_kind}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cards", type=int, default=320)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--interval", type=float, default=20.0, help="seconds")
    parser.add_argument("--failure-share", type=float, default=0.42)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    a = parser.parse_args()
    figures = write(a.out, Fleet(a.seed, a.cards, a.days, a.interval, a.failure_share))
    figures |= {"seed": a.seed, "days": a.days, "interval_seconds": a.interval}
    line = json.dumps(figures) if a.json else ", ".join(f"{k} {v}" for k, v in figures.items())
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
