"""``rigcanary doctor`` and ``doctor nccl`` as a person or a program calls them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from doctor_rig import FakeRig, gpu

from agents.doctor.nccl import advise, matrix
from rigcanary.cli import run

FIELDS = ["name", "device", "status", "found", "wanted", "reason", "fix"]


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--json", *options])
    (line,) = capsys.readouterr().out.splitlines()
    return code, orjson.loads(line)


def test_on_any_machine_it_runs_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = doctor(capsys)

    assert code == answer["summary"]["exit_code"]
    assert all(list(check) == FIELDS for check in answer["checks"])
    for status in ("pass", "warn", "fail", "unknown"):
        found = [c for c in answer["checks"] if c["status"] == status]
        assert answer["summary"][status] == len(found)


def test_the_disk_it_looks_at_is_the_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "st"
    (tmp_path / "agent.toml").write_text(f'state = "{state}"\n')
    _, answer = doctor(capsys, "--config", str(tmp_path / "agent.toml"))
    (disk,) = [check for check in answer["checks"] if check["name"] == "state-disk"]
    assert str(state) in disk["found"]


def quiet(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has no tool at all."""
    return {
        "PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "COLUMNS": "80",
    }


@pytest.mark.skipif(
    Path("/sys/class/tenstorrent").exists() or Path("/proc/driver/nvidia").exists(),
    reason="this machine has cards",
)
def test_without_tools_it_is_unknown_and_exit_code_0(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rigcanary", "doctor"], env=quiet(tmp_path),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "unknown  cards" in done.stdout
    assert "the tool nvidia-smi is not installed" in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout


def test_a_broker_that_is_named_and_away_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = doctor(capsys, "--mqtt", "127.0.0.1:1")

    assert code == 1
    (broker,) = [c for c in answer["checks"] if c["name"] == "broker"]
    assert (broker["status"], broker["found"]) == ("fail", "127.0.0.1:1")
    assert run(["doctor", "--mqtt", "127.0.0.1:1"]) == 1


def test_the_agents_own_settings_are_used(
    tmp_path: Path, broker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f"[mqtt]\nport = {broker.port}\n")

    _, answer = doctor(capsys, "--config", str(config))

    (found,) = [c for c in answer["checks"] if c["name"] == "broker"]
    assert (found["status"], found["found"]) == ("pass", f"127.0.0.1:{broker.port}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mqtt", "here:there"], "--mqtt 'here:there'"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--supply-watts", "-3"], "supply-watts"),
        (["topology"], "FILE"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("name", ["nccl", "topology"])
def test_subcommands_explain_themselves(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: rigcanary doctor {name}" in " ".join(text.split())


TOPO = "nvidia-smi topo -m"
PEER = "nvidia-smi topo -p2p r"


def table(rows: list[str]) -> str:
    gpus = "\t".join(f"GPU{i}" for i in range(len(rows)))
    heading = f"\t{gpus}\tCPU Affinity\n"
    body = "".join(f"GPU{i}\t{row}\t0-15\n" for i, row in enumerate(rows))
    return f"\x1b[4m{heading}\x1b[0m{body}\nLegend:\n  X    = Self\n  NV#  = bonded NVLinks\n"


def test_the_matrix_is_read_without_colours_network_cards_or_legend() -> None:
    text = (
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m\n"
        "GPU0\t X \tPHB\tSYS\t0-31\nGPU1\tPHB\t X \tSYS\t0-31\nNIC0\tSYS\tSYS\t X \n"
    )
    assert matrix(text) == ["PHB", "PHB"]
    assert matrix(table([" X \tNV4", "NV4\t X "])) == ["NV4", "NV4"]
    assert matrix(None) == []
    assert matrix("Unable to determine the device handle") == []


@pytest.fixture
def rig(tmp_path: Path) -> FakeRig:
    rig = FakeRig(tmp_path)
    interfaces = [
        ("enp3s0", "10000", "up"),
        ("eno1", "1000", "up"),
        ("docker0", "10000", "up"),
        ("enp4s0", "40000", "down"),
    ]
    for name, speed, state in interfaces:
        rig.file(f"/sys/class/net/{name}/speed", f"{speed}\n")
        rig.file(f"/sys/class/net/{name}/operstate", f"{state}\n")
    return rig


def pair(rig: FakeRig, model: str, link: str, peer: str) -> dict[str, str]:
    rig.nvidia(gpu(product_name=model), gpu("00000000:02:00.0", product_name=model))
    if link:
        rig.says(TOPO, table([f" X \t{link}", f"{link}\t X "]))
    if peer:
        rig.says(PEER, table([f" X \t{peer}", f"{peer}\t X "]))
    return {v.name: v.value for v in advise(rig.machine).variables}


@pytest.mark.parametrize(
    ("model", "link", "peer", "wanted"),
    [
        ("NVIDIA GeForce RTX 4090", "PHB", "CNS", {"NCCL_P2P_DISABLE": "1"}),
        ("NVIDIA GeForce RTX 3090", "NV4", "OK", {}),
        ("NVIDIA GeForce RTX 3090", "NV4", "CNS", {"NCCL_P2P_LEVEL": "NVL"}),
        ("Tesla P100-PCIE-16GB", "PHB", "OK", {}),
        ("NVIDIA GeForce GTX 1080", "", "", {"NCCL_P2P_DISABLE": "1"}),
        ("Tesla P100-PCIE-16GB", "", "", {}),
    ],
)
def test_peer_access(
    model: str, link: str, peer: str, wanted: dict[str, str], rig: FakeRig
) -> None:
    environment = pair(rig, model, link, peer)
    assert {k: v for k, v in environment.items() if "P2P" in k} == wanted


def test_two_bridged_pairs_of_four_cards_talk_over_nvlink_only(rig: FakeRig) -> None:
    rig.nvidia(*(gpu(f"00000000:0{i}:00.0") for i in range(1, 5)))
    rig.says(TOPO, table([" X \tNV4\tPHB\tSYS", "NV4\t X \tPHB\tSYS", "PHB\tPHB\t X \tNV4",
                          "SYS\tSYS\tNV4\t X "]))  # fmt: skip
    rig.says(PEER, "")

    advice = advise(rig.machine)

    (level,) = [v for v in advice.variables if v.name == "NCCL_P2P_LEVEL"]
    assert (level.value, level.reason.startswith("2 of 6 pairs")) == ("NVL", True)
    assert any("SYS" in note for note in advice.notes)


def test_the_fastest_interface_that_is_up(rig: FakeRig) -> None:
    environment = pair(rig, "NVIDIA GeForce RTX 4090", "PHB", "CNS")
    assert environment["NCCL_SOCKET_IFNAME"] == "=enp3s0"
    assert environment["NCCL_IB_DISABLE"] == "1"
    rig.file("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
    assert "NCCL_IB_DISABLE" not in {v.name for v in advise(rig.machine).variables}


def test_risers_and_slow_networks_are_noted(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    rig.file("/sys/class/net/eth0/speed", "1000\n")
    width = {"pci__pci_gpu_link_info__link_widths__current_link_width": "1x"}
    rig.nvidia(gpu(**width), gpu("00000000:02:00.0", **width))

    notes = " ".join(advise(rig.machine).notes)

    assert "narrow links (0000:01:00.0, 0000:02:00.0)" in notes
    assert "1000 Mb/s between rigs" in notes


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
def test_what_is_printed_is_shell(rig: FakeRig) -> None:
    pair(rig, "NVIDIA GeForce RTX 4090", "PHB", "CNS")
    text = advise(rig.machine).as_shell()

    done = subprocess.run(
        ["sh", "-euc", f"{text}\necho $NCCL_P2P_DISABLE $NCCL_SOCKET_IFNAME"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "1 =enp3s0\n"


def test_nccl_without_a_card_still_names_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "nccl", "--json"]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    assert set(answer) == {"environment", "reasons", "notes"}
    assert set(answer["environment"]) == set(answer["reasons"])
