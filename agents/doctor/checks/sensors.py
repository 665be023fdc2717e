"""Which sensors the rig has for what no card shows, and which proxies would stand in.

No standard source gives VRM ripple or fan vibration (DCGM has no such field; Blackhole's firmware
marks its own as not implemented). A proxy is named as one here and in the agent's readings.
"""

from agents.doctor import boards
from agents.doctor import cards as rig
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Machine

_ADD = "an ADC or accelerometer with a Linux IIO driver (see docs/doctor.md)"


def vrm_ripple(machine: Machine) -> list[Finding]:
    """ADC through IIO, else a voltage of hwmon, else the spread of NVML's power samples."""
    wanted = "an ADC on the 12 V rail"
    adc = _iio(machine, "in_voltage")
    if adc:
        return [Finding("vrm-ripple", None, Status.PASS, f"IIO {adc[0]}", wanted)]
    own = [c for c in rig.of_vendor(machine, rig.TENSTORRENT) if boards.hwmon(machine, c)]
    rails = _hwmon(machine, "in")
    if own or rails:
        where = f"hwmon {rails[0]}" if rails else "hwmon of the boards (vcore)"
        return [
            Finding(
                "vrm-ripple",
                None,
                Status.WARN,
                f"{where}, slow",
                wanted,
                "a voltage once a tick shows drift, not ripple",
                _ADD,
            )
        ]
    if any(card.xml is not None for card in rig.cards(machine)):
        return [
            Finding(
                "vrm-ripple",
                None,
                Status.WARN,
                "proxy: power-sample-spread",
                wanted,
                "the spread of the driver's power samples stands in for it, where it gives them",
                _ADD,
            )
        ]
    return [_nothing("vrm-ripple", wanted)]


def fan_vibration(machine: Machine) -> list[Finding]:
    """Accelerometer through IIO, else the jitter of a fan's rpm at constant duty."""
    wanted = "an accelerometer"
    accelerometer = _iio(machine, "in_accel")
    if accelerometer:
        return [Finding("fan-vibration", None, Status.PASS, f"IIO {accelerometer[0]}", wanted)]
    cards = [c for c in rig.cards(machine) if c.number("fan_speed") is not None]
    own = [
        c
        for c in rig.of_vendor(machine, rig.TENSTORRENT)
        if boards.board_fan_rpm(machine, c) is not None
    ]
    if cards or own or _hwmon(machine, "fan"):
        return [
            Finding(
                "fan-vibration",
                None,
                Status.WARN,
                "proxy: fan rpm jitter",
                wanted,
                "the unrest of a fan's speed at constant duty stands in for the sensor; it needs "
                "a driver that gives rpm",
                _ADD,
            )
        ]
    return [_nothing("fan-vibration", wanted)]


def ambient(machine: Machine) -> list[Finding]:
    """A temperature of the air that goes in."""
    wanted = "an inlet temperature"
    labelled = [label for label in _labels(machine, "temp") if _of_the_air(label)]
    if labelled:
        return [Finding("ambient", None, Status.PASS, f"hwmon {labelled[0]}", wanted)]
    for line in (machine.run("ipmitool", "sdr", "type", "temperature").good or "").splitlines():
        # Inlet Temp | 04h | ok | 7.1 | 25 degrees C
        label, *columns = (column.strip() for column in line.split("|"))
        if _of_the_air(label) and any(column.endswith("degrees C") for column in columns):
            return [Finding("ambient", None, Status.PASS, f"ipmi {label}", wanted)]
    other = _iio(machine, "in_temp")
    if other:
        return [Finding("ambient", None, Status.PASS, f"IIO {other[0]}", wanted)]
    return [_nothing("ambient", wanted)]


def _of_the_air(label: str) -> bool:
    return any(word in label.lower() for word in ("ambient", "inlet", "systin", "front"))


def _nothing(name: str, wanted: str) -> Finding:
    return Finding(
        name, None, Status.UNKNOWN, "no sensor shown", wanted,
        "neither IIO nor hwmon shows one; the agent sends null",
        _ADD if name != "ambient" else "sensors-detect (root); or a 1-wire or USB thermometer",
    )  # fmt: skip


def _iio(machine: Machine, prefix: str) -> list[str]:
    """Names of the IIO devices that have a channel ``prefix…_raw``."""
    return [
        machine.read(folder / "name") or folder.name
        for folder in machine.entries("/sys/bus/iio/devices")
        if any(
            path.name.startswith(prefix) and path.name.endswith("_raw")
            for path in machine.entries(folder)
        )
    ]


def _hwmon(machine: Machine, kind: str) -> list[str]:
    """``chip label`` of each input of ``kind``; voltages only where the label says 12 V."""
    if kind == "in":
        return [
            label for label in _labels(machine, "in") if "12v" in label.lower().replace(" ", "")
        ]
    return _labels(machine, kind)


def _labels(machine: Machine, kind: str) -> list[str]:
    found = []
    for folder in machine.entries("/sys/class/hwmon"):
        chip = machine.read(folder / "name") or folder.name
        for path in machine.entries(folder):
            stem = path.name.removesuffix("_input")
            if path.name.endswith("_input") and stem.rstrip("0123456789") == kind:
                found.append(f"{chip} {machine.read(folder / f'{stem}_label') or stem}")
    return found
