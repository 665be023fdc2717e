"""Settings of the sources beside NVIDIA's: what is wired to what in a rig."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agents.source import EVERY_CARD, ONLY_CARD

RIG_SOURCES = frozenset(("hwmon", "iio", "ipmi"))
"""Sources of sensors that are the rig's, not a card's own."""

Target = str
"""``*`` every card, ``?`` the rig's only card, a device's name, a PCI address, an index, or
``VENDOR:INDEX``."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HwmonSensor(_Frozen):
    """One channel of one monitoring chip, and the sensor it is."""

    chip: str
    """The chip's ``name`` as ``sensors`` shows it, or a pattern: ``nct6779``, ``nct67*``."""
    channel: str
    """Its file without ``_input``: ``temp2``, ``in1``, ``fan3``, ``pwm1``; or its label."""
    sensor: Literal[
        "ambient_celsius",
        "temperature_celsius",
        "memory_temperature_celsius",
        "vrm_voltage_volts",
        "fan_speed_rpm",
        "fan_duty_ratio",
        "power_watts",
    ]
    device: Target = EVERY_CARD
    factor: float = Field(default=1.0, gt=0)
    """Multiplies the value: the divider before an input that cannot take 12 V."""


class HwmonSettings(_Frozen):
    """Monitoring chips of the mainboard and of add-on boards."""

    root: Path = Path("/sys")
    sensors: tuple[HwmonSensor, ...] = ()
    """Without any, inlet temperature and 12 V rail are found by their labels."""


class IioSensor(_Frozen):
    """One converter or accelerometer, and the sensor it is."""

    chip: str
    """The device's ``name`` or ``label``, its folder (``iio:device0``), or a pattern."""
    sensor: Literal["vibration", "ripple"]
    channels: tuple[str, ...] = ()
    """``accel_x``, ``voltage0``, …; all axes, or the first voltage, unless given."""
    device: Target = ONLY_CARD
    factor: float = Field(default=1.0, gt=0)
    """Multiplies each sample: (R1 + R2) / R2 of a divider before the converter."""
    sampling_hertz: float | None = Field(default=None, gt=0)
    """Rate to set when the buffer is turned on; the driver's own unless given."""


class IioSettings(_Frozen):
    """Converters and accelerometers of Linux' Industrial I/O."""

    root: Path = Path("/sys")
    dev: Path = Path("/dev")
    sensors: tuple[IioSensor, ...] = ()
    """Without any, an accelerometer counts for the only card of a rig."""
    samples: int = Field(default=1024, ge=32, le=65_536)
    """Length of a burst."""
    single_reads: int = Field(default=64, ge=8, le=4096)
    """Reads of a channel where there is no buffer."""


class IpmiSettings(_Frozen):
    """The mainboard's management controller, through ``ipmitool``."""

    command: tuple[str, ...] = Field(default=("ipmitool", "sdr"), min_length=1)
    every_seconds: float = Field(default=30.0, ge=1)
    deadline_seconds: float = Field(default=20.0, gt=0)
    ambient: str | None = None
    """Name of the inlet's sensor; found by its name unless given."""
    rail: str | None = None
    """Name of the 12 V rail's sensor; found by its name unless given."""


class TenstorrentSettings(_Frozen):
    """Tenstorrent cards, through tt-kmd or else ``tt-smi``."""

    root: Path = Path("/sys")
    command: tuple[str, ...] = Field(default=("tt-smi", "-s"), min_length=1)
    every_seconds: float = Field(default=15.0, ge=1)
    """Cadence of ``tt-smi``; sysfs is read at every tick."""
    deadline_seconds: float = Field(default=30.0, gt=0)
    heartbeat_polls: int = Field(default=3, ge=2)
    """A heartbeat that is the same this many times in a row is a firmware that stands still."""


class KernelLogSettings(_Frozen):
    """The kernel's log."""

    path: Path = Path("/dev/kmsg")
    root: Path = Path("/sys")
    """Where the card behind a PCIe port is looked up, which often reports the card's errors."""
    repeat_seconds: float = Field(default=300.0, ge=0)
    """One fault of one device is one event within this time, however many lines it has."""
