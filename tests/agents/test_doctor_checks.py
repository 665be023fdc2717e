"""Each check on a rig of files and recorded answers: a pass, something else, an unknown."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from doctor_rig import FakeRig, gpu

from agents.doctor.checks.nvidia import NVML_PROBE
from agents.doctor.diagnose import diagnose
from agents.doctor.finding import Finding, Status
from agents.doctor.table import CHECKS, Options

PASS, WARN, FAIL, UNKNOWN = Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN


class Case(NamedTuple):
    check: str
    status: Status
    build: Callable[[FakeRig], object]
    found: str = ""
    options: Options = Options()


WIDTHS = "pci__pci_gpu_link_info__link_widths__"
GENERATIONS = "pci__pci_gpu_link_info__pcie_gen__"
REASONS = "clocks_event_reasons__clocks_event_reason_"
LINK = {"current_link_width": "16", "max_link_width": "16"}
AER_CLEAN = "Receiver Error 0\nBad TLP 0\nTOTAL_ERR_COR 0"


def aer(correctable: int = 0, nonfatal: int = 0, hours: float = 10.0) -> Callable[[FakeRig], Any]:
    def build(rig: FakeRig) -> None:
        rig.file("/proc/uptime", f"{hours * 3600} 1.0\n")
        rig.pci(
            aer_dev_correctable=f"Receiver Error {correctable}\nTOTAL_ERR_COR {correctable}",
            aer_dev_nonfatal="TOTAL_ERR_NONFATAL 0",
            # The port above sees what the card itself does not.
            port={"aer_dev_nonfatal": f"TOTAL_ERR_NONFATAL {nonfatal}"},
        )

    return build


def regions(*bars: tuple[int, int, int]) -> str:
    """``resource`` of (start, size, flags) a BAR."""
    lines = [f"0x{s:016x} 0x{s + n - 1:016x} 0x{f:016x}" for s, n, f in bars]
    return "\n".join([*lines, *["0x0000000000000000 " * 3] * (7 - len(bars))])


MEM64 = 0x14220C
MIB = 1 << 20
HIGH, LOW = 0x6000000000, 0xC0000000


def tt_snapshot(kind: str = "p150a", **parts: dict[str, str]) -> str:
    board = {"board_info": {"bus_id": "0000:01:00.0", "board_type": kind}, **parts}
    return orjson.dumps({"device_info": [board]}).decode()


def beating(rig: FakeRig) -> None:
    """A board whose heartbeat moves while the doctor waits."""
    rig.tenstorrent(tt_heartbeat="100")
    beats = iter(range(101, 200))

    class Pauses(list[float]):
        def append(self, seconds: float) -> None:
            path = "/sys/class/tenstorrent/tenstorrent!0/tt_heartbeat"
            rig.file(path, f"{next(beats)}\n")

    rig.pauses = Pauses()


def xorg(options: str) -> Callable[[FakeRig], Any]:
    def build(rig: FakeRig) -> None:
        rig.nvidia(gpu(product_architecture="Pascal"))
        rig.file("/etc/X11/xorg.conf", f'Section "Device"\n{options}\nEndSection\n')

    return build


def old_card(**answers: str) -> Callable[[FakeRig], Any]:
    """A Pascal card in a desktop session, and what nvidia-settings says."""

    def build(rig: FakeRig) -> None:
        rig.environment["DISPLAY"] = ":0"
        rig.nvidia(gpu(product_architecture="Pascal"))
        for name, text in answers.items():
            rig.says(f"nvidia-settings -t -q {name}", text)

    return build


def measured(rate: str, **link: str) -> Callable[[FakeRig], Any]:
    def build(rig: FakeRig) -> None:
        rig.nvidia(gpu(**{f"{GENERATIONS}max_link_gen": "4", f"{WIDTHS}current_link_width": "16x"}))
        case = {"name": "h2d", "status": "Passed", "bandwidth_matrix": [[rate]]}
        answer = orjson.dumps({"nvbandwidth": {"testcases": [case]}}).decode()
        rig.says("nvbandwidth -t host_to_device_memcpy_ce -j", f"warming up\n{answer}\n")

    return build


def ecc(**counts: str) -> Callable[[FakeRig], Any]:
    return lambda rig: rig.nvidia(gpu(ecc_mode__current_ecc="Enabled", **counts))


def nvidia(**values: str) -> Callable[[FakeRig], Any]:
    return lambda rig: rig.nvidia(gpu(**values))


def on_the_bus(rig: FakeRig) -> None:
    """A card of which sysfs shows no more than that it is there, and no tool anything."""
    rig.pci()


def governor(name: str) -> Callable[[FakeRig], Any]:
    def build(rig: FakeRig) -> None:
        rig.tenstorrent()
        rig.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", f"{name}\n")

    return build


CHRONY = "A29FC87B,ntp.lan,3,1767225600.1,{offset},0.0001,0.0002,1.5,0.0,0.1,0.01,0.001,64.2,{leap}"

CASES = [
    Case("cards", PASS, on_the_bus),
    Case("cards", FAIL, lambda r: r.pci().pci("0000:02:00.0").nvidia(gpu()), "0000:02:00.0"),
    Case("cards", FAIL, nvidia(temperature__gpu_temp="GPU is lost"), "lost"),
    Case("cards", UNKNOWN, lambda r: r, "none"),
    Case("pcie-width", PASS, lambda r: r.pci(**LINK, port=LINK), "x16"),
    Case("pcie-width", FAIL,
         lambda r: r.pci(**{**LINK, "current_link_width": "1"}, port=LINK), "x1"),
    Case("pcie-width", WARN,
         lambda r: r.pci(**{**LINK, "current_link_width": "8"}, port={"max_link_width": "8"})),
    Case("pcie-width", WARN,
         nvidia(**{f"{WIDTHS}current_link_width": "8x", f"{WIDTHS}max_link_width": "16x"})),
    Case("pcie-width", UNKNOWN, on_the_bus),
    Case("pcie-width", UNKNOWN, lambda r: r.pci(current_link_width="0", max_link_width="255")),
    Case("pcie-generation", PASS,
         lambda r: r.pci(current_link_speed="16.0 GT/s PCIe", max_link_speed="16.0 GT/s PCIe")),
    Case("pcie-generation", PASS,
         # The card could do 4, the port does 3.
         lambda r: r.pci(current_link_speed="8.0 GT/s PCIe", max_link_speed="16.0 GT/s PCIe",
                         port={"max_link_speed": "8.0 GT/s PCIe"}), "gen 3"),
    Case("pcie-generation", WARN,
         nvidia(**{f"{GENERATIONS}current_link_gen": "1", f"{GENERATIONS}max_link_gen": "4",
                   "utilization__gpu_util": "99 %"}), "gen 1"),
    Case("pcie-generation", UNKNOWN,
         nvidia(**{f"{GENERATIONS}current_link_gen": "1", f"{GENERATIONS}max_link_gen": "4",
                   "utilization__gpu_util": "0 %"}), "gen 1"),
    Case("aer-mode", PASS,
         lambda r: r.pci(aer_dev_correctable=AER_CLEAN).file("/proc/cmdline", "quiet")),
    Case("aer-mode", WARN, lambda r: r.file("/proc/cmdline", "quiet pci=nommconf,noaer ro")),
    Case("aer-mode", UNKNOWN, lambda r: r.pci().file("/proc/cmdline", "quiet")),
    Case("aer-counters", PASS, aer(correctable=5)),
    Case("aer-counters", WARN, aer(correctable=500), "500 correctable"),
    Case("aer-counters", FAIL, aer(nonfatal=1), "1 nonfatal"),
    Case("aer-counters", UNKNOWN, on_the_bus),
    Case("pcie-replays", PASS, nvidia(pci__replay_counter="0")),
    Case("pcie-replays", WARN, nvidia(pci__replay_counter="57"), "57"),
    Case("pcie-replays", UNKNOWN, on_the_bus),
    Case("above-4g", PASS,
         lambda r: r.pci(resource=regions((LOW, 16 * MIB, 0x40200), (HIGH, 256 * MIB, MEM64)))),
    Case("above-4g", WARN, lambda r: r.pci(resource=regions((LOW, 256 * MIB, MEM64))), "256 MiB"),
    Case("above-4g", FAIL,
         lambda r: r.pci(resource=regions((0, 32768 * MIB, MEM64 | 0x20000000))), "32 GiB"),
    Case("above-4g", FAIL,
         lambda r: r.pci(resource=regions((HIGH, 256 * MIB, MEM64 | 0x20000000))), "no address"),
    Case("above-4g", UNKNOWN, on_the_bus),
    Case("resizable-bar", PASS,
         nvidia(bar1_memory_usage__total="32768 MiB", fb_memory_usage__total="24576 MiB")),
    Case("resizable-bar", PASS,
         nvidia(bar1_memory_usage__total="256 MiB", fb_memory_usage__total="8192 MiB",
                product_architecture="Pascal")),
    Case("resizable-bar", WARN,
         # Bits 8 and 15: 256 MiB and 32 GiB.
         lambda r: r.pci(resource=regions((HIGH, 256 * MIB, MEM64)),
                         resource0_resize="0000000000008100"), "256 MiB"),
    Case("resizable-bar", UNKNOWN, lambda r: r.pci(resource=regions((HIGH, 256 * MIB, MEM64)))),
    Case("link-bandwidth", PASS, measured("26.1"), "26.1 GB/s", Options(measure=True)),
    Case("link-bandwidth", WARN, measured("6.2"), "6.2 GB/s", Options(measure=True)),
    Case("link-bandwidth", UNKNOWN, measured("26.1"), "not measured"),
    Case("link-bandwidth", UNKNOWN, nvidia(), "not measured", Options(measure=True)),
    Case("nvidia-driver", PASS, lambda r: r.nvidia(gpu()).file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23 2024\n")),
    Case("nvidia-driver", FAIL, lambda r: r.nvidia(gpu()).file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01  Release Build\n"),
        "module 535.183.01, NVML 550.54.15"),
    Case("nvidia-driver", FAIL, lambda r: r.pci().says(
        "nvidia-smi -q -x",
        "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 550.54\n", "nvidia-smi ended with code 18: Failed"), "NVML 550.54"),
    Case("nvidia-driver", FAIL, lambda r: r.pci().says(
        "nvidia-smi -q -x",
        "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n",
        "nvidia-smi ended with code 255: Unable"), "Unable to determine"),
    Case("nvidia-driver", UNKNOWN, on_the_bus, "module not loaded"),
    Case("nvml", PASS, lambda r: r.pci().says(" ".join(NVML_PROBE), "550.54.15 8\n"), "8 cards"),
    Case("nvml", FAIL, lambda r: r.pci().says(
        " ".join(NVML_PROBE),
        "Traceback\npynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version "
        "mismatch.\n", "python ended with code 1: Traceback"), "version mismatch"),
    Case("nvml", UNKNOWN, lambda r: r.pci().says(
        " ".join(NVML_PROBE), "Traceback\nModuleNotFoundError: No module named 'pynvml'\n",
        "python ended with code 1: Traceback")),
    Case("nvml", UNKNOWN, lambda r: r.pci().says(
        " ".join(NVML_PROBE), "", "python gave no answer within 10 s and was killed")),
    Case("identity", PASS, nvidia(vbios_version="94.02.71.40.72")),
    Case("identity", WARN, nvidia(product_name="Graphics Device")),
    Case("identity", WARN, lambda r: r.nvidia(
        gpu(vbios_version="94.02.71.40.72"), gpu("00000000:02:00.0", vbios_version="94.02.26.88.0F")
    )),
    Case("identity", UNKNOWN, on_the_bus),
    Case("persistence", PASS, nvidia(persistence_mode="Enabled")),
    Case("persistence", WARN, nvidia(persistence_mode="Disabled")),
    Case("persistence", UNKNOWN, nvidia(persistence_mode="N/A")),
    Case("clocks", PASS, nvidia(**{f"{REASONS}applications_clocks_setting": "Not Active",
                                   "utilization__gpu_util": "97 %"})),
    Case("clocks", WARN, nvidia(applications_clocks__graphics_clock="1000 MHz",
                                default_applications_clocks__graphics_clock="1480 MHz"), "1000"),
    Case("clocks", WARN, nvidia(**{f"{REASONS}applications_clocks_setting": "Active",
                                   "clocks__graphics_clock": "1200 MHz"}), "1200 MHz"),
    Case("clocks", UNKNOWN, nvidia(**{f"{REASONS}applications_clocks_setting": "Not Active",
                                      "utilization__gpu_util": "0 %"})),
    Case("throttling", PASS, nvidia(**{f"{REASONS}hw_thermal_slowdown": "Not Active"})),
    Case("throttling", FAIL, nvidia(**{f"{REASONS}hw_thermal_slowdown": "Active",
                                       "temperature__gpu_temp": "95 C"}), "95 °C"),
    Case("throttling", WARN, nvidia(
        clocks_throttle_reasons__clocks_throttle_reason_sw_thermal_slowdown="Active")),
    Case("throttling", UNKNOWN, on_the_bus),
    Case("ecc", PASS, ecc(ecc_errors__volatile__dram_uncorrectable="0")),
    Case("ecc", FAIL, ecc(ecc_errors__volatile__sram_uncorrectable_parity="1"), "1 not"),
    Case("ecc", WARN, ecc(ecc_errors__aggregate__single_bit__total="12"), "in its life 12"),
    Case("ecc", WARN, nvidia(ecc_mode__current_ecc="Disabled"), "off"),
    Case("ecc", UNKNOWN, nvidia(ecc_mode__current_ecc="N/A"), "no ECC"),
    Case("retired-memory", PASS,
         nvidia(remapped_rows__remapped_row_corr="0", remapped_rows__remapped_row_unc="0")),
    Case("retired-memory", WARN, nvidia(remapped_rows__remapped_row_unc="2"), "2 rows"),
    Case("retired-memory", FAIL, nvidia(remapped_rows__remapped_row_corr="0",
                                        remapped_rows__remapped_row_failure="Yes")),
    Case("retired-memory", FAIL, nvidia(retired_pages__double_bit_retirement__retired_count="3",
                                        retired_pages__pending_retirement="Yes"), "pending"),
    Case("retired-memory", FAIL,
         nvidia(retired_pages__double_bit_retirement__retired_count="11"), "11 pages"),
    Case("retired-memory", UNKNOWN, nvidia(remapped_rows="N/A")),
    Case("memory-temperature", PASS, nvidia(temperature__memory_temp="60 C",
                                            temperature__gpu_temp_max_mem_threshold="95 C")),
    Case("memory-temperature", WARN, nvidia(temperature__memory_temp="88 C",
                                            temperature__gpu_temp_max_mem_threshold="95 C")),
    Case("memory-temperature", FAIL, nvidia(temperature__memory_temp="95 C",
                                            temperature__gpu_temp_max_mem_threshold="95 C")),
    Case("memory-temperature", PASS, lambda r: r.tenstorrent().says(
        "tt-smi -s", tt_snapshot(smbus_telem={"MAX_GDDR_TEMP": "0x3a"})), "58 °C"),
    Case("memory-temperature", UNKNOWN, nvidia(temperature__memory_temp="N/A")),
    Case("fans", PASS, nvidia(fan_speed="0 %", temperature__gpu_temp="35 C"), "0 % at 35 °C"),
    Case("fans", FAIL, nvidia(fan_speed="0 %", temperature__gpu_temp="84 C")),
    Case("fans", PASS, lambda r: r.tenstorrent().board_hwmon(fan1_input="1900"), "1900 rpm"),
    Case("fans", UNKNOWN, nvidia(fan_speed="N/A")),
    Case("chassis-fans", PASS, lambda r: r.file("/sys/class/hwmon/hwmon0/name", "nct6775\n").file(
        "/sys/class/hwmon/hwmon0/fan1_input", "1200\n")),
    Case("chassis-fans", PASS, lambda r: r.says(
        "ipmitool sdr type fan", "FAN1 | 41h | ok  | 29.1 | 1300 RPM\nFAN2 | 42h | ns | 29.2 | No\n"
    ), "1 turn"),
    Case("chassis-fans", WARN, lambda r: r.file("/sys/class/hwmon/hwmon0/fan1_input", "0\n")),
    Case("chassis-fans", FAIL, lambda r: r.file("/sys/class/hwmon/hwmon0/fan1_input", "300\n").file(
        "/sys/class/hwmon/hwmon0/fan1_min", "600\n").file(
        "/sys/class/hwmon/hwmon0/fan1_alarm", "1\n"), "hwmon0/fan1"),
    Case("chassis-fans", UNKNOWN, lambda r: r),
    Case("vrm-ripple", PASS, lambda r: r.file("/sys/bus/iio/devices/iio:device0/name", "ads1115\n")
         .file("/sys/bus/iio/devices/iio:device0/in_voltage0_raw", "1\n"), "ads1115"),
    Case("vrm-ripple", WARN, nvidia(), "proxy"),
    Case("vrm-ripple", WARN, lambda r: r.file("/sys/class/hwmon/hwmon0/in3_input", "12096\n").file(
        "/sys/class/hwmon/hwmon0/in3_label", "+12V\n"), "hwmon0 +12V"),
    Case("vrm-ripple", UNKNOWN, lambda r: r),
    Case("fan-vibration", PASS,
         lambda r: r.file("/sys/bus/iio/devices/iio:device1/in_accel_x_raw", "1\n")),
    Case("fan-vibration", WARN, nvidia(fan_speed="45 %"), "proxy"),
    Case("fan-vibration", UNKNOWN, lambda r: r),
    Case("ambient", PASS, lambda r: r.file("/sys/class/hwmon/hwmon0/temp2_input", "31000\n").file(
        "/sys/class/hwmon/hwmon0/temp2_label", "Inlet Temp\n")),
    Case("ambient", PASS, lambda r: r.says(
        "ipmitool sdr type temperature", "Inlet Temp | 04h | ok  |  7.1 | 25 degrees C\n"), "ipmi"),
    Case("ambient", UNKNOWN, lambda r: r),
    Case("power-limit", PASS, nvidia(power_readings__power_limit="350.00 W",
                                     power_readings__default_power_limit="350.00 W")),
    Case("power-limit", WARN, nvidia(gpu_power_readings__current_power_limit="200.00 W",
                                     gpu_power_readings__default_power_limit="350.00 W"), "200 W"),
    Case("power-limit", UNKNOWN, on_the_bus),
    Case("supply", PASS, lambda r: r.tenstorrent(), "300 W", Options(supply_watts=850)),
    Case("supply", WARN, lambda r: r.tenstorrent(), "", Options(supply_watts=500)),
    Case("supply", FAIL, lambda r: r.tenstorrent(), "", Options(supply_watts=400)),
    Case("supply", UNKNOWN, lambda r: r.tenstorrent(), "cards 300 W"),
    Case("supply", UNKNOWN, on_the_bus),
    Case("xorg-coolbits", PASS, xorg('Option "Coolbits" "4"'), "4 (fan)"),
    Case("xorg-coolbits", PASS, xorg('# Option "Coolbits" "28"'), "not set"),
    Case("xorg-coolbits", WARN, xorg('Option "Coolbits" "28"'), "overvoltage"),
    Case("xorg-coolbits", UNKNOWN, nvidia(product_architecture="Pascal")),
    Case("powermizer", PASS, old_card(GPUPowerMizerMode="2\n"), "auto"),
    Case("powermizer", WARN,
         xorg('Option "RegistryDwords" "PowerMizerEnable=0x1; PerfLevelSrc=0x2222"'),
         "PowerMizerEnable=0x1"),
    Case("powermizer", UNKNOWN, nvidia(product_architecture="Kepler")),
    Case("voltage-curve", PASS, old_card(GPUGraphicsClockOffsetAllPerformanceLevels="0\n")),
    Case("voltage-curve", WARN, old_card(GPUGraphicsClockOffset="150\n"), "150"),
    Case("voltage-curve", PASS, nvidia(
        product_architecture="Pascal", applications_clocks__graphics_clock="1075 MHz",
        max_clocks__graphics_clock="1721 MHz"), "1075"),
    Case("voltage-curve", UNKNOWN, nvidia(product_architecture="Maxwell")),
    Case("tt-kmd", PASS, lambda r: r.tenstorrent(), "2.3.0"),
    Case("tt-kmd", FAIL, lambda r: r.pci(vendor="0x1e52"), "not loaded"),
    Case("tt-kmd", FAIL, lambda r: r.pci(vendor="0x1e52").file(
        "/sys/module/tenstorrent/version", "2.3.0\n"), "not taken"),
    Case("tt-kmd", UNKNOWN, lambda r: r.says("tt-smi -s", tt_snapshot())),
    Case("tt-smi", PASS, lambda r: r.tenstorrent().says("tt-smi -s", tt_snapshot())),
    Case("tt-smi", WARN, lambda r: r.tenstorrent().tenstorrent("0000:02:00.0", 1).says(
        "tt-smi -s", tt_snapshot()), "0000:02:00.0"),
    Case("tt-smi", UNKNOWN, lambda r: r.tenstorrent()),
    Case("tt-smi", UNKNOWN, lambda r: r.tenstorrent().says("tt-smi -s", "{not json}")),
    Case("tt-heartbeat", PASS, beating),
    Case("tt-heartbeat", FAIL, lambda r: r.tenstorrent(tt_heartbeat="4711"), "stands still"),
    Case("tt-heartbeat", FAIL, lambda r: r.tenstorrent(tt_heartbeat="4294967295"), "all ones"),
    Case("tt-heartbeat", UNKNOWN, lambda r: r.tenstorrent()),
    Case("tt-thermal-trips", PASS, lambda r: r.tenstorrent(tt_therm_trip_count="0")),
    Case("tt-thermal-trips", FAIL, lambda r: r.tenstorrent(tt_therm_trip_count="2"), "2"),
    Case("tt-thermal-trips", UNKNOWN, lambda r: r.tenstorrent(tt_therm_trip_count="4294967295")),
    Case("tt-cooling", PASS, lambda r: r.tenstorrent().board_hwmon(fan1_input="1900")),
    Case("tt-cooling", FAIL, lambda r: r.tenstorrent().board_hwmon(fan1_input="0"), "0 rpm"),
    Case("tt-cooling", WARN, lambda r: r.tenstorrent(kind="p150b"), "passive"),
    Case("tt-cooling", PASS, lambda r: r.tenstorrent(kind="p150b").file(
        "/sys/class/hwmon/hwmon9/fan1_input", "4200\n"), "1 chassis fan"),
    Case("tt-cooling", UNKNOWN, lambda r: r.tenstorrent()),
    Case("tt-cooling", UNKNOWN, lambda r: r.tenstorrent(kind="n150")),
    Case("tt-connector", PASS,
         lambda r: r.tenstorrent().board_hwmon(power1_input="61000000"), "draws 61 W"),
    Case("tt-connector", WARN, lambda r: r.tenstorrent().says(
        "tt-smi -s", tt_snapshot(telemetry={"power": " 340.0"})), "340 W"),
    # What a hung chip shows (tt-metal#30055) is no draw.
    Case("tt-connector", UNKNOWN,
         lambda r: r.tenstorrent().board_hwmon(power1_input="4294967295000")),
    Case("performance-conf", PASS, governor("performance")),
    Case("performance-conf", WARN, governor("powersave"), "powersave"),
    Case("performance-conf", UNKNOWN, lambda r: r.tenstorrent()),
    Case("time-sync", PASS, lambda r: r.says(
        "chronyc -c tracking", CHRONY.format(offset="0.000012", leap="Normal"))),
    Case("time-sync", FAIL, lambda r: r.says(
        "chronyc -c tracking", CHRONY.format(offset="-3.5", leap="Normal")), "-3500"),
    Case("time-sync", WARN, lambda r: r.says("timedatectl show", "NTP=no\nNTPSynchronized=no\n")),
    Case("time-sync", PASS, lambda r: r.says("adjtimex -p", "   mode: 0\n  status: 8193\n")),
    Case("time-sync", WARN, lambda r: r.says("adjtimex -p", "   mode: 0\n  status: 64\n")),
    Case("time-sync", UNKNOWN, lambda r: r),
]  # fmt: skip

ELSEWHERE = {"broker", "broker-tls", "state-disk"}
"""Checks that touch more than files and tools; they have tests of their own."""


def found_by(rig: FakeRig, name: str, options: Options) -> list[Finding]:
    report = diagnose(rig.machine, options)
    return [finding for finding in report.findings if finding.name == name]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.check}-{c.status}")
def test_a_check_says(case: Case, tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    case.build(rig)

    findings = found_by(rig, case.check, case.options)

    (first, *_) = [f for f in findings if f.status is case.status] or findings
    assert first.status is case.status, first
    assert case.found in first.found
    if case.status in (WARN, FAIL):
        assert first.reason, "a trouble says why it matters"
        assert first.fix, "and what to do"
    if case.status is UNKNOWN:
        assert first.reason, "an unknown says why"


def test_every_check_has_a_pass_a_trouble_and_an_unknown() -> None:
    for name in ({check.name for check in CHECKS} | {"cards"}) - ELSEWHERE:
        statuses = {case.status for case in CASES if case.check == name}
        # A rig without a thermometer at its inlet is no trouble.
        trouble = {WARN, FAIL} & statuses or name == "ambient"
        assert {PASS, UNKNOWN} <= statuses, name
        assert trouble, name


def test_the_page_has_a_row_for_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    rows = " ".join(line for line in page.splitlines() if line.startswith("| `"))
    assert [check.name for check in CHECKS if f"`{check.name}`" not in rows] == []


def test_a_rig_without_tools_fails_nothing(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.pci().pci("0000:02:00.0", "0x10de")

    report = diagnose(rig.machine, Options())

    assert [f for f in report.findings if f.status is FAIL] == []
    assert report.exit_code == 0


def test_a_tool_is_asked_once(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.nvidia(gpu())

    diagnose(rig.machine, Options())

    assert rig.runs.count(("nvidia-smi", "-q", "-x")) == 1
    assert ("tt-smi", "-s") not in rig.runs, "tt-smi opens boards: not asked where there are none"


def test_the_other_functions_of_a_card_are_no_cards(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.pci()
    rig.file("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")
    rig.file("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")

    report = diagnose(rig.machine, Options())

    assert [card.address for card in report.cards] == ["0000:01:00.0"]


def test_new_cards_are_not_judged_by_rules_for_old_ones(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.nvidia(gpu(product_architecture="Ampere"))
    rig.file("/etc/X11/xorg.conf", 'Option "Coolbits" "28"\n')

    assert found_by(rig, "xorg-coolbits", Options()) == []


def test_a_p150b_among_fans_of_its_own_board_is_not_called_cooled(tmp_path: Path) -> None:
    """A card's own hwmon is no chassis fan."""
    rig = FakeRig(tmp_path)
    rig.tenstorrent(kind="p150b")
    rig.file("/sys/class/hwmon/hwmon0/name", "blackhole\n")
    rig.file("/sys/class/hwmon/hwmon0/fan1_input", "2000\n")

    (finding,) = found_by(rig, "tt-cooling", Options())

    assert finding.status is WARN


@pytest.mark.parametrize(
    ("free_bytes", "status"), [(50 << 30, PASS), (500 << 20, WARN), (10 << 20, FAIL)]
)
def test_disk_of_the_state_folder(
    free_bytes: int, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return shutil._ntuple_diskusage(100 << 30, 0, free_bytes)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    options = Options(state=tmp_path / "not" / "yet" / "there")

    (finding,) = found_by(FakeRig(tmp_path), "state-disk", options)

    assert finding.status is status
    assert asked == [tmp_path], "the nearest folder that is there"


def test_a_disk_that_cannot_be_asked_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(path: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "disk_usage", usage)

    (finding,) = found_by(FakeRig(tmp_path), "state-disk", Options(state=tmp_path))

    assert (finding.status, "Permission denied" in finding.reason) == (UNKNOWN, True)
