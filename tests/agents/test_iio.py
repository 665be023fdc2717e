"""Linux IIO: the layout of scans, bursts through a pipe, single reads, what belongs to what."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.formats.iio_scan import Element, decode, longest_run, offsets
from agents.messages import Envelope
from agents.sampler import Sampler, Tick
from agents.sensor_settings import IioSensor, IioSettings
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed
from agents.sources.iio import IioSource
from contract.errors import ConfigError

G = 9.80665


def at(tick: int) -> Instant:
    return Instant(1_767_225_600.0 + 5 * tick, 1000.0 + 5 * tick)


# --- scans -----------------------------------------------------------------------------------


def test_types_as_the_kernel_writes_them() -> None:
    element = Element.parse("accel_x", 0, "le:s12/16>>4\n")
    assert (element.bits, element.storage_bytes, element.shift) == (12, 2, 4)
    assert (element.signed, element.big_endian) == (True, False)
    for bad in ("le:s16/16X2>>0", "le:s16/24>>0", "le:s12/16>>8", "xx:s16/16>>0", ""):
        with pytest.raises(ValueError, match="accel_x"):
            Element.parse("accel_x", 0, bad)


def test_a_scan_is_aligned_to_its_largest_element() -> None:
    # Three axes of 16 bits and a time stamp of 64: the kernel leaves two bytes free.
    axes = [Element.parse(f"accel_{a}", i, "le:s16/16>>0") for i, a in enumerate("xyz")]
    stamp = Element.parse("timestamp", 3, "le:s64/64>>0")
    where, size = offsets([stamp, *axes])
    assert where == {"accel_x": 0, "accel_y": 2, "accel_z": 4, "timestamp": 8}
    assert size == 16
    assert offsets(axes)[1] == 6
    assert offsets([])[1] == 0


@st.composite
def scans(draw: Callable[..., Any]) -> tuple[list[Element], list[list[int]]]:
    elements = []
    for index in range(draw(st.integers(1, 5))):
        storage = draw(st.sampled_from([8, 16, 32, 64]))
        bits = draw(st.integers(1, storage))
        shift = draw(st.integers(0, storage - bits))
        sign, endian = draw(st.sampled_from("su")), draw(st.sampled_from(["le", "be"]))
        if sign == "u" and bits == 64:
            bits = 63
        elements.append(
            Element.parse(f"c{index}", index, f"{endian}:{sign}{bits}/{storage}>>{shift}")
        )
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        row = []
        for e in elements:
            low, high = (
                (-(2 ** (e.bits - 1)), 2 ** (e.bits - 1) - 1) if e.signed else (0, 2**e.bits - 1)
            )
            row.append(draw(st.integers(low, high)))
        rows.append(row)
    return elements, rows


@given(scans(), st.binary(max_size=3), st.integers(0, 2**64 - 1))
def test_what_is_packed_is_read_again(
    spec: tuple[list[Element], list[list[int]]], rest: bytes, junk: int
) -> None:
    elements, rows = spec
    where, size = offsets(elements)
    data = b""
    for row in rows:
        scan = bytearray(size)
        for element, value in zip(elements, row, strict=True):
            width = 8 * element.storage_bytes
            mask = (1 << element.bits) - 1
            # What lies around the bits is undefined.
            stored = (junk & ~(mask << element.shift) | (value & mask) << element.shift) % 2**width
            order = "big" if element.big_endian else "little"
            place = where[element.name]
            scan[place : place + element.storage_bytes] = stored.to_bytes(
                element.storage_bytes, order
            )
        data += bytes(scan)
    decoded = decode(data + rest[: size - 1], elements)
    for i, element in enumerate(elements):
        assert decoded[element.name].tolist() == [row[i] for row in rows]


def test_the_longest_run_has_no_gap_and_tells_the_rate() -> None:
    steady = np.arange(0, 100) * 1_250_000
    assert longest_run(steady) == (slice(0, 100), pytest.approx(800.0))
    gap = np.concatenate([steady[:40], steady[40:] + 10**9])
    assert longest_run(gap) == (slice(40, 100), pytest.approx(800.0))
    # What came in while the full buffer was being emptied is not the burst.
    tail = np.concatenate([steady[:95], steady[95:] + 10**9])
    assert longest_run(tail) == (slice(0, 95), pytest.approx(800.0))
    assert longest_run(steady[:2]) == (slice(0, 2), None)
    assert longest_run(np.zeros(10, dtype=np.int64)) == (slice(0, 10), None)


# --- a device --------------------------------------------------------------------------------


class Fake:
    """An IIO device in a folder; its buffer is a pipe that a test fills."""

    def __init__(self, root: Path, number: int, name: str, files: dict[str, str]) -> None:
        self.folder = root / "bus" / "iio" / "devices" / f"iio:device{number}"
        self.node = root / f"iio:device{number}"
        for file, text in {"name": name, **files}.items():
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        os.mkfifo(self.node)
        self._fd = os.open(self.node, os.O_RDWR | os.O_NONBLOCK)

    def fill(self, raw_TX: np.ndarray, first_ns: int = 0, step_ns: int = 1_250_000) -> None:
        """Scans of int16 axes and a time stamp."""
        n, axes = raw_TX.shape
        layout = np.dtype(
            {
                "names": ["v", "t"],
                "formats": [("<i2", (axes,)), "<i8"],
                "offsets": [0, 8],
                "itemsize": 16,
            }
        )
        out = np.zeros(n, dtype=layout)
        out["v"], out["t"] = raw_TX, first_ns + np.arange(n) * step_ns
        os.write(self._fd, out.tobytes())

    def fill_axes(self, raw_TX: np.ndarray) -> None:
        """Scans of int16 axes alone."""
        os.write(self._fd, raw_TX.astype("<i2").tobytes())

    def close(self) -> None:
        os.close(self._fd)


ACCEL = {
    "sampling_frequency": "800.0",
    "in_accel_scale": "0.038307",  # ADXL345: 3.9 mg a step
    **{f"in_accel_{a}_raw": "0" for a in "xyz"},
    **{f"scan_elements/in_accel_{a}_en": "0" for a in "xyz"},
    **{f"scan_elements/in_accel_{a}_index": str(i) for i, a in enumerate("xyz")},
    **{f"scan_elements/in_accel_{a}_type": "le:s13/16>>0" for a in "xyz"},
    "scan_elements/in_timestamp_en": "0",
    "scan_elements/in_timestamp_index": "3",
    "scan_elements/in_timestamp_type": "le:s64/64>>0",
    "buffer/enable": "0",
    "buffer/length": "2",
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def build(name: str = "adxl345", **files: str | None) -> Fake:
        base = {**ACCEL, **{k.replace("__", "/"): v for k, v in files.items()}}
        device = Fake(tmp_path, len(made), name, {k: v for k, v in base.items() if v is not None})
        made.append(device)
        return device

    yield build
    for device in made:
        device.close()


def source(tmp_path: Path, *sensors: IioSensor, rig_only: bool = False, **more: Any) -> IioSource:
    iio = IioSettings(root=tmp_path, dev=tmp_path, sensors=sensors, **{"samples": 1024, **more})
    names = ("iio",) if rig_only else ("nvml", "iio")
    return IioSource(AgentSettings(node="rig1", sources=names, iio=iio))


def shaking(n: int = 1024, hertz: float = 118.0, g: float = 0.5) -> np.ndarray:
    """Raw samples at 800 Hz: gravity on z, a line on x."""
    metres = g * math.sqrt(2) * G * np.sin(2 * np.pi * hertz * np.arange(n) / 800.0)
    raw = np.zeros((n, 3))
    raw[:, 0], raw[:, 2] = metres / 0.038307, G / 0.038307
    return np.round(raw).astype(np.int16)


def test_a_burst_gives_line_and_strength_in_g_without_gravity(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    device = make()
    device.fill(shaking())
    iio = source(tmp_path, IioSensor(chip="iio:device0", sensor="vibration", sampling_hertz=1600))
    (reading,) = iio.read(at(0))
    assert (device.folder / "sampling_frequency").read_text() == "1600"
    assert reading["attach"] == "?"
    assert reading["fan_vibration_hertz"] == pytest.approx(118.0, abs=0.4)
    assert reading["fan_vibration_g"] == pytest.approx(0.5, rel=0.02)
    assert "methods" not in reading  # it is the sensor, and nothing stands in for it
    assert (device.folder / "buffer/enable").read_text() == "1"
    assert (device.folder / "buffer/length").read_text() == "1024"
    iio.close()
    assert (device.folder / "buffer/enable").read_text() == "0"


def test_the_rate_is_that_of_the_time_stamps_and_a_gap_cuts_the_burst(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    device = make(sampling_frequency="100.0")  # some drivers state the last one asked for
    device.fill(np.zeros((400, 3), dtype=np.int16), first_ns=0)
    device.fill(shaking(624), first_ns=10**12)
    (reading,) = source(tmp_path).read(at(0))
    assert reading["fan_vibration_hertz"] == pytest.approx(118.0, abs=0.7)
    assert reading["fan_vibration_g"] == pytest.approx(0.5, rel=0.03)


def test_a_buffer_is_emptied_at_each_tick_and_the_first_samples_count(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    device = make(
        scan_elements__in_timestamp_en=None,
        scan_elements__in_timestamp_index=None,
        scan_elements__in_timestamp_type=None,
    )
    iio = source(tmp_path)
    for tick, g in enumerate((0.5, 0.25)):
        device.fill_axes(shaking(1024, g=g))
        device.fill_axes(np.full((30, 3), 4000, dtype=np.int16))  # behind a gap
        (reading,) = iio.read(at(tick))
        assert reading["fan_vibration_g"] == pytest.approx(g, rel=0.02)
    iio.close()


def test_a_buffer_that_the_owner_set_up_is_used_as_it_is(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    device = make(
        buffer__enable="1",
        **{f"scan_elements__in_accel_{a}_en": "1" for a in "xyz"},
        scan_elements__in_timestamp_en="1",
    )
    device.fill(shaking())
    iio = source(tmp_path)
    assert iio.read(at(0))[0]["fan_vibration_g"] == pytest.approx(0.5, rel=0.02)
    iio.close()
    assert (device.folder / "buffer/enable").read_text().strip() == "1"


def test_nothing_sampled_yet_is_no_reading_and_the_next_tick_has_it(
    tmp_path: Path, make: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.formats.iio_device.FIRST_WAIT_SECONDS", 0.05)
    device = make()
    iio = source(tmp_path)
    assert iio.read(at(0)) == []
    device.fill(shaking())
    assert iio.read(at(1))[0]["fan_vibration_g"] == pytest.approx(0.5, rel=0.02)
    assert iio.read(at(2)) == []
    device.fill(shaking(8))
    assert iio.read(at(3))[0]["fan_vibration_g"] is None


@pytest.mark.parametrize(
    "without",
    [
        {"buffer__enable": None},
        {"scan_elements__in_accel_y_type": "le:s16/16X3>>0"},
        {"scan_elements__in_accel_z_index": None},
    ],
)
def test_single_reads_stand_in_where_the_buffer_cannot_be_used(
    tmp_path: Path, make: Callable[..., Fake], without: dict[str, str | None]
) -> None:
    device = make(**without)
    (device.folder / "in_accel_z_raw").write_text("256\n")
    (reading,) = source(tmp_path).read(at(0))
    assert reading["fan_vibration_g"] == 0.0
    assert reading["fan_vibration_hertz"] is None
    assert reading["methods"] == {"fan_vibration_g": "iio-single-reads"}


def test_ripple_and_rail_of_a_converter_behind_a_divider(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    # 12 V through 10 kΩ and 1.8 kΩ into a converter of 0.1 mV a step, 40 mV ripple at 300 Hz.
    factor = (10 + 1.8) / 1.8
    volts = 12.0 + 0.02 * np.sin(2 * np.pi * 300 * np.arange(1024) / 8000)
    files = {key: None for key in ACCEL if "accel" in key}
    device = make(
        "ads1015",
        **{key.replace("/", "__"): value for key, value in files.items()},
        in_voltage0_raw="0",
        in_voltage_scale="0.1",
        scan_elements__in_voltage0_en="0",
        scan_elements__in_voltage0_index="0",
        scan_elements__in_voltage0_type="le:s16/16>>0",
    )
    device.fill(np.round(volts / factor * 1e3 / 0.1).astype(np.int16)[:, None], step_ns=125_000)
    wired = IioSensor(chip="ads10*", sensor="ripple", device="0", factor=factor)
    (reading,) = source(tmp_path, wired).read(at(0))
    assert reading["attach"] == "0"
    assert reading["vrm_ripple_volts"] == pytest.approx(0.04, abs=0.002)
    assert reading["vrm_voltage_volts"] == pytest.approx(12.0, abs=0.01)
    assert "methods" not in reading


def test_an_impossible_strength_is_null_and_counted(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    make(in_accel_scale="50").fill(shaking(g=0.5))
    iio = source(tmp_path)
    assert iio.read(at(0))[0]["fan_vibration_g"] is None
    assert iio.nulled == {("fan_vibration_g", "out of range"): 1}


def test_no_device_and_a_chip_that_is_not_there_are_said(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    with pytest.raises(NotHere, match="no IIO device"):
        source(tmp_path).read(at(0))
    make()
    wrong = source(tmp_path, IioSensor(chip="lis3dh", sensor="vibration"))
    with pytest.raises(ReadFailed, match="no IIO device 'lis3dh' .* there are: adxl345"):
        wrong.read(at(0))
    no_axes = source(tmp_path, IioSensor(chip="adxl345", sensor="ripple"))
    with pytest.raises(ReadFailed, match="with voltage channels"):
        no_axes.read(at(0))
    with pytest.raises(ConfigError, match="a copy of /sys"):
        IioSource(AgentSettings(input=tmp_path / "nothing"))


def test_a_device_that_was_pulled_out_fails_and_comes_back(
    tmp_path: Path, make: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make()
    device.fill(shaking())
    iio = source(tmp_path)
    iio.read(at(0))
    real = os.read

    def gone(fd: int, size: int) -> bytes:
        raise OSError(19, os.strerror(19))

    monkeypatch.setattr("agents.formats.iio_device._read", gone)
    with pytest.raises(ReadFailed, match="iio:device0: No such device"):
        iio.read(at(1))
    monkeypatch.setattr("agents.formats.iio_device._read", real)
    device.fill(shaking())
    assert iio.read(at(2))[0]["fan_vibration_g"] == pytest.approx(0.5, rel=0.02)


# --- with cards ------------------------------------------------------------------------------


class Cards:
    name, enumerates = "cards", True

    def __init__(self, *readings: DeviceReading) -> None:
        self._readings = readings

    def read(self, now: Instant) -> list[DeviceReading]:
        return [dict(reading) for reading in self._readings]

    def close(self) -> None:
        pass


PROXIED = {
    "device": "GPU-1",
    "index": 0,
    "vendor": "nvidia",
    "fan_vibration_g": 0.01,
    "vrm_ripple_volts": 0.3,
    "methods": {"fan_vibration_g": "fan-rpm-jitter", "vrm_ripple_volts": "power-sample-spread"},
}


def tick(cards: Cards, iio: IioSource) -> Tick:
    return Sampler(Envelope("lab", "rig1", "b"), [cards, iio], 5.0).tick(at(0))


def test_a_measured_value_beats_the_proxy_of_a_source_before_it(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    make().fill(shaking())
    out = tick(Cards(PROXIED), source(tmp_path))
    assert out.telemetry is not None
    (card,) = out.telemetry["devices"]
    assert card["fan_vibration_g"] == pytest.approx(0.5, rel=0.02)
    assert card["methods"] == {"vrm_ripple_volts": "power-sample-spread"}
    assert "attach" not in card


def test_an_unmapped_accelerometer_is_nobodys_where_there_are_two_cards(
    tmp_path: Path, make: Callable[..., Fake]
) -> None:
    make().fill(shaking())
    cards = Cards({"device": "GPU-1", "index": 0}, {"device": "GPU-2", "index": 1})
    out = tick(cards, source(tmp_path))
    assert out.telemetry is not None
    assert [d["fan_vibration_g"] for d in out.telemetry["devices"]] == [None, None]
    assert len(out.notices) == 1
    assert "map the sensor to a card, there are 2 (docs/sensors.md)" in out.notices[0]


def test_alone_it_speaks_for_the_rig(tmp_path: Path, make: Callable[..., Fake]) -> None:
    make().fill(shaking())
    (reading,) = source(tmp_path, rig_only=True).read(at(0))
    assert reading["device"] == "rig1"
    assert reading["fan_vibration_g"] == pytest.approx(0.5, rel=0.02)
    assert "attach" not in reading
