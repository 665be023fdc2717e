"""Faults in the kernel's log: once each, with their card, and nothing from before."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.formats.kernel_lines import FaultReader, kmsg_record, log_line
from agents.messages import Envelope, encode
from agents.once import event_line, once_events
from agents.sampler import Sampler
from agents.sensor_settings import KernelLogSettings
from agents.settings import AgentSettings
from agents.source import DeviceReading, Instant, NotHere, ReadFailed, SourceEvent
from agents.sources import nvml as nvml_source
from agents.sources.kernel_log import KernelLogSource
from agents.sources.nvidia_smi_xml import parse
from contract.errors import ConfigError
from contract.message import check_event, loads

RECORDING = (
    Path(__file__).parents[3] / "shared/data/device_outputs/kernel_log/dmesg-with-xid-119.log"
)
XID_79 = "NVRM: Xid (PCI:0000:44:00): 79, pid=1, GPU has fallen off the bus."
FALLEN = "NVRM: GPU 0000:44:00.0: GPU has fallen off the bus."
THREE_LINES = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
UUID_LINE = "NVRM: GPU at PCI:0000:44:00: GPU-aa-bb"


def of_file(tmp_path: Path, text: str, **settings: float) -> list[SourceEvent]:
    path = tmp_path / "kernel.log"
    path.write_text(text)
    source = KernelLogSource(
        AgentSettings(sources=("kernel_log",), input=path, kernel_log=KernelLogSettings(**settings))
    )
    found = []
    for i in range(3):  # a file is read once, however often it is asked for
        assert source.read(at(i)) == []
        found += source.events(at(i))
    return found


def at(tick: int) -> Instant:
    return Instant(1_767_225_600.0 + 5 * tick, 1000.0 + 5 * tick)


def stamped(*lines: tuple[float, str]) -> str:
    return "\n".join(f"[{seconds:12.6f}] {text}" for seconds, text in lines)


# --- what a line says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "address"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 119, pid=7, name=x, Timeout", 119, "0000:9b:00"),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000030, engmask 00000101", 31, "0000:03:00"),
        ("NVRM: Xid (PCI:0000:01:00.0): 48, pid='<unknown>'", 48, "0000:01:00.0"),
        (FALLEN, 79, "0000:44:00.0"),
        ("NVRM: GPU at PCI:0000:0a:00 has fallen off the bus", 79, "0000:0a:00"),
        (
            "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
            None,
            "0000:01:00.0",
        ),
        (
            "pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Non-Fatal) error message received"
            " from 0000:01:00.0",
            None,
            "0000:01:00.0",
        ),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction "
            "Layer, (Requester ID)",
            None,
            "0000:01:00.0",
        ),
        ("tenstorrent 0000:41:00.0: QSFP-DD port 2 link reset", None, "0000:41:00.0"),
        (
            "mlx5_core 0000:ab:00.0: Port module event[error]: module 0, Cable error, "
            "Bus stuck(I2C Data shorted)",
            None,
            "0000:ab:00.0",
        ),
    ],
)
def test_lines_of_faults(line: str, code: int | None, address: str) -> None:
    fault = FaultReader().read(line)
    assert fault is not None
    assert (fault.code, fault.pci_address, fault.raw) == (code, address, line)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01",
        "NVRM: GPU4 GSP RPC history (CPU -> GSP):",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 122",
        "pcieport 0000:00:01.0:    [ 0] RxErr                  (First)",
        "i2c i2c-1: QSFP28 module identified",
        "usb 1-1: reset high-speed USB device number 2",
        "",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert FaultReader().read(line) is None


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    reader = FaultReader()
    for line in text.split("\n"):
        reader.read(line)
        log_line(line)
    kmsg_record(text.encode())


def test_a_number_that_is_no_xid_ends_nothing() -> None:
    reader = FaultReader()
    assert reader.read(f"NVRM: Xid (PCI:0000:44:00): {'9' * 21}, foo") is None
    assert kmsg_record(b"4," + b"9" * 30 + b",1,-;NVRM: Xid (PCI:0000:44:00): 79, bar") is None


def test_what_a_program_wrote_into_the_log_is_not_the_kernels_word() -> None:
    said = b"NVRM: Xid (PCI:0000:45:00): 79, pretend"
    kernel, program = kmsg_record(b"4,7,5000,-;" + said), kmsg_record(b"12,8,5001,-;" + said)
    assert kernel is not None
    assert program is not None
    assert (kernel.text, program.text) == (said.decode(), "")
    assert program.seq == 8


def test_records_of_the_device_are_unescaped_and_end_at_their_properties() -> None:
    record = kmsg_record(
        b"3,512,1843308145,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: fallen\n DEVICE=+pci:x\n"
    )
    assert record is not None
    assert (record.seq, record.seconds) == (512, 1843.308145)
    assert record.text == "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen"
    assert kmsg_record(b"garbage") is None


# --- one fault, one event --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        stamped((10.0, FALLEN)),
        stamped((10.0, XID_79), (10.1, FALLEN)),
        stamped((10.0, FALLEN), (12.0, XID_79)),
        stamped(*((10.0, line) for line in THREE_LINES.split("\n"))),
        THREE_LINES,
    ],
)
def test_fallen_off_the_bus_is_one_event_with_an_xid_or_without(tmp_path: Path, text: str) -> None:
    # NVSentinel#155, gpud#1209
    (event,) = of_file(tmp_path, text)
    assert (event.type, event.code) == ("xid", 79)
    assert (event.pci_address or "").startswith(("0000:44:00", "0000:b3:00"))


def test_a_repeated_line_is_one_event_in_five_minutes_and_counted_in_the_next(
    tmp_path: Path,
) -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 31, pid=1"
    every_minute = stamped(*((60.0 * i, line) for i in range(7)))
    first, second = of_file(tmp_path, every_minute)
    assert "more lines" not in first.message
    assert "and 4 more lines" in second.message
    other_card = stamped((0, line), (1, line.replace("01:00", "02:00")), (2, line))
    assert [e.pci_address for e in of_file(tmp_path, other_card)] == ["0000:01:00", "0000:02:00"]
    other_code = stamped((0, line), (1, line.replace("31", "13")))
    assert [e.code for e in of_file(tmp_path, other_code)] == [31, 13]
    assert len(of_file(tmp_path, every_minute, repeat_seconds=0)) == 7


def test_the_two_lines_of_one_pcie_error_are_one_event(tmp_path: Path) -> None:
    text = stamped(
        (1, "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0"),
        (1, "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Tx)"),
        (1, "nvidia 0000:01:00.0:   device [10de:2204] error status/mask=00001000/0000a000"),
        (2, "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0"),
    )
    corrected, fatal = of_file(tmp_path, text)
    assert corrected.message == "PCIe error of 0000:01:00.0: corrected"
    assert fatal.message == "PCIe error of 0000:01:00.0: uncorrected (fatal)"
    assert (corrected.type, corrected.code) == ("xid", None)


@pytest.mark.skipif(not RECORDING.exists(), reason="recordings are not beside the repository")
def test_the_recorded_log_gives_its_xid_its_card_and_its_time() -> None:
    settings = AgentSettings(sources=("kernel_log",), input=RECORDING)
    events = [event for event, _ in once_events(settings)]
    # 119 from 16:24:18 on, the last line of it at 16:30:13.
    assert [(e["type"], e["code"]) for e in events] == [("xid", 119)] * 2
    assert events[1]["ts"] - events[0]["ts"] == 355.0
    assert {e["device"] for e in events} == {"GPU-cc0282e5-ab82-2518-2545-e809d0c7db7f"}
    assert "and 3 more lines" in events[1]["message"]
    assert event_line(events[0]).startswith("xid 119  GPU-cc0282e5")
    for event in events:
        check_event(loads(encode(event)), 1_800_000_000_000)


@pytest.mark.parametrize(
    "line",
    [
        "[ 1843.308145] ",
        "[Sun Feb 23 16:24:18 2025] ",
        "2025-02-23T16:24:18,123456+00:00 rig001 kernel: ",
        "Feb 14 05:03:41 rig001 kernel: ",
        "3,512,1843308145,-;",
        "kern  :err   : [ 1843.308145] ",
        "",
    ],
)
def test_the_forms_of_dmesg_journalctl_and_syslog(tmp_path: Path, line: str) -> None:
    (event,) = of_file(tmp_path, line + XID_79)
    assert event.code == 79
    seconds, _, text = log_line(line + XID_79)
    assert XID_79 in text
    assert (seconds is None) == (line == "")


# --- the device ------------------------------------------------------------------------------


class Kmsg:
    """A socket pair that gives one record a read without waiting, as /dev/kmsg does."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs.setblocking(False)
        self.errors: list[int] = []
        self.seq = 0

    def say(self, text: str, skip: int = 0) -> None:
        self.seq += 1 + skip
        escaped = text.replace("\n", "\\x0a")
        self._ours.send(f"4,{self.seq},{self.seq}000,-;{escaped}\n".encode())

    def read(self, fd: int, size: int) -> bytes:
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return os.read(self.theirs.fileno(), size)

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


@pytest.fixture
def kmsg() -> Iterator[Kmsg]:
    device = Kmsg()
    yield device
    device.close()


def follow(tmp_path: Path, kmsg: Kmsg) -> KernelLogSource:
    path = tmp_path / "kmsg"
    path.touch()
    settings = KernelLogSettings(path=path, root=tmp_path / "sys")
    return KernelLogSource(AgentSettings(kernel_log=settings), read=kmsg.read)


def test_nothing_from_before_the_agent_is_reported(tmp_path: Path, kmsg: Kmsg) -> None:
    # gpud#1019; the names of cards are learnt from it all the same.
    kmsg.say(UUID_LINE)
    kmsg.say(XID_79)
    source = follow(tmp_path, kmsg)
    source.read(at(0))
    assert source.events(at(0)) == []
    kmsg.say(XID_79)
    source.read(at(1))
    (event,) = source.events(at(1))
    assert (event.device, event.code, event.ts) == ("GPU-aa-bb", 79, None)
    source.close()


def test_one_occurrence_is_one_event_for_two_hours(tmp_path: Path, kmsg: Kmsg) -> None:
    # dcgm-exporter#500, #502: the last Xid must not stick.
    source = follow(tmp_path, kmsg)
    source.read(at(0))
    kmsg.say("NVRM: Xid (PCI:0000:01:00): 31, pid=1")
    told = []
    for i in range(1, 1441):
        source.read(at(i))
        told += source.events(at(i))
    assert [e.code for e in told] == [31]
    source.close()


def test_an_overrun_is_counted_and_the_log_goes_on(tmp_path: Path, kmsg: Kmsg) -> None:
    source = follow(tmp_path, kmsg)
    kmsg.say("hello")
    source.read(at(0))
    kmsg.errors = [errno.EPIPE]
    kmsg.say(XID_79, skip=40)
    source.read(at(1))
    assert source.overruns == 40
    assert [e.code for e in source.events(at(1))] == [79]
    source.close()


def test_a_log_that_fails_is_opened_again(tmp_path: Path, kmsg: Kmsg) -> None:
    source = follow(tmp_path, kmsg)
    source.read(at(0))
    kmsg.errors = [errno.EIO]
    with pytest.raises(ReadFailed, match="kmsg"):
        source.read(at(1))
    kmsg.say(XID_79)  # it may have been there before the log came back: not new
    source.read(at(2))
    assert source.events(at(2)) == []
    kmsg.say("NVRM: Xid (PCI:0000:44:00): 48, DBE")
    source.read(at(3))
    assert [e.code for e in source.events(at(3))] == [48]
    source.close()


def test_no_log_is_not_here_and_no_such_input_is_said(tmp_path: Path) -> None:
    settings = KernelLogSettings(path=tmp_path / "nothing")
    with pytest.raises(NotHere, match="nothing: No such file"):
        KernelLogSource(AgentSettings(kernel_log=settings)).read(at(0))
    with pytest.raises(ConfigError, match="there is no such file"):
        KernelLogSource(AgentSettings(input=tmp_path / "nothing"))


def test_a_flood_is_bounded_and_counted(tmp_path: Path) -> None:
    lines = "\n".join(f"NVRM: Xid (PCI:0000:01:00): {n}, x" for n in range(1, 1500))
    path = tmp_path / "flood"
    path.write_text(lines)
    source = KernelLogSource(AgentSettings(input=path))
    source.read(at(0))
    assert len(source.events(at(0))) == 200
    assert source.dropped == 1299


def test_the_error_of_a_port_is_the_card_behind_it(tmp_path: Path, kmsg: Kmsg) -> None:
    port = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:00:01.0"
    for name in ("0000:01:00.0", "0000:01:00.1", "power"):
        (port / name).mkdir(parents=True)
    source = follow(tmp_path, kmsg)
    source.read(at(0))
    kmsg.say("pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer")
    source.read(at(1))
    (event,) = source.events(at(1))
    assert (event.pci_address or "")[:10] == "0000:01:00"
    source.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_real_device_is_followed_without_waiting() -> None:
    source = KernelLogSource(AgentSettings())
    for i in range(3):
        source.read(at(i))
    assert isinstance(source.events(at(3)), list)
    source.close()
    source.close()


# --- with a card -----------------------------------------------------------------------------


class Cards:
    name, enumerates = "cards", True

    def read(self, now: Instant) -> list[DeviceReading]:
        return [
            {"device": "GPU-1", "index": 0, "pci_address": "00000000:44:00.0"},
            {"device": "GPU-2", "index": 1, "pci_address": "0000:45:00.0"},
        ]

    def close(self) -> None:
        pass


def test_an_event_finds_its_card_by_its_address_which_is_not_published(
    tmp_path: Path, kmsg: Kmsg
) -> None:
    sampler = Sampler(Envelope("lab", "rig1", "b"), [Cards(), follow(tmp_path, kmsg)], 5.0)
    sampler.tick(at(0))
    kmsg.say(FALLEN)
    kmsg.say(XID_79.replace("44:00", "99:00"))
    tick = sampler.tick(at(1))
    assert [(e["type"], e["code"], e["device"]) for e in tick.events] == [
        ("xid", 79, "GPU-1"),
        ("xid", 79, None),
    ]
    assert tick.telemetry is not None
    assert all("pci_address" not in device for device in tick.telemetry["devices"])
    sampler.close()


def test_nvidias_sources_say_where_their_cards_are() -> None:
    xml = b"""<?xml version="1.0"?><nvidia_smi_log>
    <gpu id="00000000:9B:00.0"><uuid>GPU-1</uuid></gpu></nvidia_smi_log>"""
    assert parse(xml)[0]["pci_address"] == "00000000:9b:00.0"

    def told(pci_info: Any) -> Any:
        fake = SimpleNamespace(nvmlDeviceGetPciInfo=pci_info, NVMLError=pynvml.NVMLError)
        return nvml_source._pci_address(fake, None)

    def refuses(handle: object) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    for bus in (b"00000000:9B:00.0", "00000000:9B:00.0"):
        assert told(lambda _, bus=bus: SimpleNamespace(busId=bus)) == {
            "pci_address": "00000000:9b:00.0"
        }
    assert told(refuses) == {}
