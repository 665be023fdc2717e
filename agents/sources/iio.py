"""The source ``iio``: an accelerometer on a fan, a converter on the 12 V rail (Linux IIO).

A burst of the buffer *is* the sensor. Single reads, where there is no buffer, only stand in for
one, and their reading says so in ``methods``.
"""

import fnmatch
import importlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agents.nulled import plausible
from agents.sensor_settings import IioSensor
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from agents.sysfs import listdir
from contract.errors import ConfigError

if TYPE_CHECKING:
    from agents.formats.iio_device import Burst, IioDevice

SINGLE_READS: Final = "iio-single-reads"
_MILLI: Final = 1e-3


class IioSource:
    """Reads the wired sensors of ``[iio]``; without any, an accelerometer if there is one."""

    name = "iio"
    enumerates = False

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings.iio
        self._root, self._dev = settings.iio.root, settings.iio.dev
        if settings.input is not None:
            if not settings.input.is_dir():
                raise ConfigError(f"--input {settings.input}: iio reads a folder, a copy of /sys")
            self._root = self._dev = settings.input
        self._node = settings.node if settings.rig_only else None
        self._open: dict[tuple[str, tuple[str, ...]], IioDevice] = {}
        self.nulled: Counter[tuple[str, str]] = Counter()

    def read(self, now: Instant) -> list[DeviceReading]:
        folders = listdir(self._root / "bus" / "iio" / "devices", "iio:device")
        if not folders:
            raise NotHere(f"no IIO device under {self._root}/bus/iio/devices (docs/sensors.md)")
        sensors = self._settings.sensors or (IioSensor(chip="*", sensor="vibration"),)
        readings: list[DeviceReading] = []
        failures: list[str] = []
        for sensor in sensors:
            try:
                reading = self._read(sensor, folders)
            except ReadFailed as error:
                failures.append(str(error))
                continue
            except OSError as error:
                failures.append(f"an IIO device answers with an error: {error.strerror}")
                continue
            if reading is not None:
                readings.append(reading)
        if failures and not readings:
            raise ReadFailed("; ".join(failures))
        if self._node is None or not readings:
            return readings
        whole: DeviceReading = {"device": self._node, "state": "ok"}
        for reading in readings:
            whole = {**reading, **whole, "methods": _methods(whole) | _methods(reading)}
        whole.pop("attach")
        return [whole]

    def close(self) -> None:
        for device in self._open.values():
            device.close()
        self._open.clear()

    def _read(self, sensor: IioSensor, folders: list[Path]) -> DeviceReading | None:
        device = self._device(sensor, folders)
        if device is None:
            return None
        try:
            burst = device.read()
        except ReadFailed:
            self._open = {k: v for k, v in self._open.items() if v is not device}
            raise
        if burst is None:
            return None
        values = _ripple(burst, sensor) if sensor.sensor == "ripple" else _vibration(burst, sensor)
        reading: DeviceReading = {"attach": sensor.device}
        for name, value in values.items():
            reading[name] = plausible(name, value, self.nulled)
        if burst.single_reads:
            reading["methods"] = {
                name: SINGLE_READS for name in values if reading[name] is not None
            }
        return reading

    def _device(self, sensor: IioSensor, folders: list[Path]) -> "IioDevice | None":
        # numpy is imported with it, which an agent without such a sensor never needs.
        module = importlib.import_module("agents.formats.iio_device")
        kind = "voltage" if sensor.sensor == "ripple" else "accel"
        for folder in folders:
            if not any(fnmatch.fnmatch(name, sensor.chip) for name in module.names(folder)):
                continue
            channels = sensor.channels or module.channels(folder, kind)
            if not sensor.channels and kind == "voltage":
                channels = channels[:1]
            if not channels:
                continue
            key = folder.name, tuple(channels)
            if key not in self._open:
                self._open[key] = module.IioDevice(
                    folder,
                    self._dev,
                    tuple(channels),
                    self._settings.samples,
                    self._settings.single_reads,
                    sensor.sampling_hertz,
                )
            return self._open[key]
        if self._settings.sensors:
            raise ReadFailed(
                f"no IIO device {sensor.chip!r} with {kind} channels; "
                f"there are: {', '.join(module.names(f)[0] for f in folders)}"
            )
        return None


def _ripple(burst: "Burst", sensor: IioSensor) -> dict[str, float | None]:
    burst_module = importlib.import_module("agents.burst")
    volts_T = burst.samples_TX[:, 0] * _MILLI * sensor.factor
    ripple = burst_module.peak_to_peak(volts_T)
    return {
        "vrm_ripple_volts": ripple,
        "vrm_voltage_volts": None if ripple is None else float(volts_T.mean()),
    }


def _vibration(burst: "Burst", sensor: IioSensor) -> dict[str, float | None]:
    burst_module = importlib.import_module("agents.burst")
    # The time between single reads is not known well enough for a line.
    rate = None if burst.single_reads else burst.sampling_hertz
    found = burst_module.vibration(burst.samples_TX * sensor.factor, rate)
    if found is None:
        return {"fan_vibration_hertz": None, "fan_vibration_g": None}
    return {"fan_vibration_hertz": found.hertz, "fan_vibration_g": found.g}


def _methods(reading: DeviceReading) -> dict[str, str]:
    return dict(reading.get("methods") or {})
