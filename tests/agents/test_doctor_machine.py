"""Tools that hang, fail or are not there; recordings of real cards; the report for a person."""

import os
import time
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest
from doctor_rig import DATA, FakeRig, gpu
from rich.console import Console

from agents.doctor.diagnose import diagnose
from agents.doctor.finding import Finding, Status
from agents.doctor.machine import Answer, Machine, run_tool
from agents.doctor.render import render
from agents.doctor.table import Options

recorded = pytest.mark.skipif(not DATA.exists(), reason="recordings of devices are not here")


def script(folder: Path, name: str, body: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_hanging_tool_is_killed_with_its_children(tmp_path: Path) -> None:
    # The grandchild keeps the pipe open: who waits for its end waits an hour.
    pids = tmp_path / "pids"
    env = script(tmp_path / "bin", "hangs", f"sleep 3600 &\necho $$ $! > {pids}\nwait")

    answer = run_tool(("hangs",), 0.5, env)

    assert answer.good is None
    assert "no answer within 0.5 s and was killed" in (answer.problem or "")
    deadline = time.monotonic() + 10
    while any(alive(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "a child of the tool lives on"
        time.sleep(0.02)


def test_a_tool_speaks_english_and_its_failure_is_told(tmp_path: Path) -> None:
    env = script(tmp_path / "bin", "fails", "echo; echo no devices in $LC_ALL >&2; exit 9")

    answer = run_tool(("fails",), 10, env)

    assert answer.problem == "fails ended with code 9: no devices in C"


def test_a_tool_that_is_not_there_or_no_program_is_a_problem_not_an_error(tmp_path: Path) -> None:
    assert run_tool(("no-such-tool",), 1, {"PATH": str(tmp_path)}).problem == (
        "the tool no-such-tool is not installed"
    )
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    problem = run_tool(("broken",), 1, {"PATH": str(tmp_path)}).problem
    assert problem is not None
    assert problem.startswith("broken cannot be started")


def test_with_a_hanging_nvidia_smi_the_report_is_unknown_with_that_reason(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path / "root")
    rig.pci()
    env = script(tmp_path / "bin", "nvidia-smi", "sleep 3600")

    def quickly(argv: tuple[str, ...], deadline: float, given: Mapping[str, str]) -> Answer:
        return run_tool(argv, min(deadline, 0.3), given)

    report = diagnose(Machine(rig.root, quickly, env), Options())

    (driver,) = [f for f in report.findings if f.name == "nvidia-driver"]
    assert driver.status is Status.UNKNOWN
    assert "was killed" in driver.reason
    assert report.exit_code == 0


def test_what_may_not_be_read_is_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.read("/sys/nothing") is None
    assert machine.entries("/sys/nothing") == []
    (tmp_path / "folder").mkdir()
    assert machine.read("/folder") is None
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    assert machine.read("/binary") == "��"


def of_recording(tmp_path: Path, name: str) -> dict[str, Finding]:
    rig = FakeRig(tmp_path)
    rig.says("nvidia-smi -q -x", (DATA / "nvidia_smi_xml" / f"{name}.xml").read_text())
    return {f.name: f for f in diagnose(rig.machine, Options()).findings}


@recorded
@pytest.mark.parametrize(
    "path", sorted((DATA / "nvidia_smi_xml").glob("*.xml")), ids=lambda p: p.stem
)
def test_no_recorded_card_fails(path: Path, tmp_path: Path) -> None:
    """They were healthy, at least to their owners; what is not supported is no fault."""
    found = of_recording(tmp_path, path.stem)

    assert found["nvidia-driver"].status is Status.PASS
    assert [f for f in found.values() if f.status is Status.FAIL] == []


@recorded
@pytest.mark.parametrize(
    ("name", "check", "status", "said"),
    [
        ("rtx-3090-v12", "pcie-generation", Status.UNKNOWN, "gen 1"),
        ("rtx-3080-v13", "pcie-generation", Status.PASS, "gen 4"),
        ("rtx-3090-v12", "resizable-bar", Status.PASS, "32 GiB"),
        ("rtx-3090-v12", "power-limit", Status.WARN, "200 W"),
        ("quadro-p2000-v12", "pcie-width", Status.WARN, "x8"),
        ("quadro-p2000-v12", "voltage-curve", Status.PASS, "1075 MHz"),
        ("tesla-t4", "ecc", Status.PASS, "0 corrected"),
        ("tesla-t4", "fans", Status.UNKNOWN, "no fan"),
        ("a10g", "retired-memory", Status.PASS, "0 rows"),
        ("gtx-1660-ti", "identity", Status.WARN, "Graphics Device"),
        ("rtx-3060-v12", "memory-temperature", Status.UNKNOWN, "not shown"),
    ],
)
def test_recorded_cards(name: str, check: str, status: Status, said: str, tmp_path: Path) -> None:
    finding = of_recording(tmp_path, name)[check]

    assert finding.status is status
    assert said in finding.found


@recorded
def test_recorded_tenstorrent_boards(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.says("tt-smi -s", (DATA / "tt_smi/edited/blackhole_8xp150.json").read_text())

    report = diagnose(rig.machine, Options())

    assert [card.model for card in report.cards] == ["p150b"] * 8
    found = {f.name: f for f in report.findings}
    assert found["tt-cooling"].status is Status.WARN
    assert found["supply"].found.startswith("cards 2400 W")
    assert found["tt-connector"].status is Status.UNKNOWN


@recorded
@pytest.mark.parametrize("name", ["invalid_json", "missing_device_info", "empty_device_info"])
def test_broken_snapshots_of_tt_smi_are_unknown(name: str, tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.tenstorrent()
    rig.says("tt-smi -s", (DATA / f"tt_smi/edited/{name}.json").read_text())

    found = {f.name: f for f in diagnose(rig.machine, Options()).findings}

    assert found["tt-smi"].status in (Status.UNKNOWN, Status.WARN)
    assert found["tt-connector"].status is Status.UNKNOWN


@pytest.fixture
def two_cards(tmp_path: Path) -> FakeRig:
    rig = FakeRig(tmp_path)
    rig.nvidia(
        gpu(persistence_mode="Disabled", temperature__gpu_temp="GPU is lost"),
        gpu("00000000:02:00.0", persistence_mode="Disabled"),
    )
    return rig


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_and_is_plain_when_piped(two_cards: FakeRig, columns: int) -> None:
    out = StringIO()
    render(diagnose(two_cards.machine, Options()), Console(file=out, width=columns))

    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert max(len(line) for line in lines) <= columns
    assert all(line == line.rstrip() for line in lines)
    rows = [line.split() for line in lines if line.startswith(("fail", "warn", "unknown", "pass"))]
    order = ["fail", "warn", "unknown", "pass"]
    assert [order.index(row[0]) for row in rows] == sorted(order.index(row[0]) for row in rows)


def test_one_row_for_a_finding_of_all_cards(two_cards: FakeRig) -> None:
    out = StringIO()
    render(diagnose(two_cards.machine, Options()), Console(file=out, width=100))

    text = out.getvalue()
    assert text.count("persistence ") == 1
    assert "all cards: off" in text
    assert "01:00.0: lost" in text
