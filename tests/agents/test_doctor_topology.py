"""Link plans: a good one passes, any broken cable is named; live links are held against it."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson
import pytest
from doctor_rig import FakeRig
from hypothesis import given
from hypothesis import strategies as st

from agents.doctor import links
from agents.doctor.plan import Plan, check, hops, read, summary
from contract.errors import ConfigError
from rigcanary.cli import run

NAMES = ["north", "east", "south", "west"]


def cable(name: str, one: tuple[str, int], other: tuple[str, int]) -> dict[str, str]:
    return {"name": name, "from": f"{one[0]}:{one[1]}", "to": f"{other[0]}:{other[1]}"}


@st.composite
def meshes(draw: st.DrawFn, cards: int = 4) -> dict[str, Any]:
    """A full mesh with ports, directions and order drawn at random."""
    ports = {name: draw(st.permutations([1, 2, 3, 4])) for name in NAMES[:cards]}
    cables = []
    for number, ends in enumerate(combinations(NAMES[:cards], 2)):
        one, other = draw(st.permutations(ends))
        cables.append(cable(f"c{number}", (one, ports[one].pop()), (other, ports[other].pop())))
    return {
        "cards": [{"name": name} for name in draw(st.permutations(NAMES[:cards]))],
        "cables": draw(st.permutations(cables)),
    }


def plan(raw: dict[str, Any]) -> Plan:
    return Plan.model_validate(raw)


@given(meshes())
def test_a_valid_mesh_passes(raw: dict[str, Any]) -> None:
    mesh = plan(raw)
    assert check(mesh) == []
    shown = summary(mesh)
    assert (shown["cards"], shown["cables"], shown["hops_most"]) == (4, 6, 1)


@given(meshes(), st.integers(0, 5), st.data())
def test_a_single_broken_cable_is_named(
    raw: dict[str, Any], index: int, data: st.DataObject
) -> None:
    broken = raw["cables"][index]
    one, other = (str(broken[end]).partition(":")[0] for end in ("from", "to"))
    fault = data.draw(st.sampled_from(["port", "card", "itself", "moved", "taken"]))
    if fault == "port":
        broken["to"] = f"{other}:{data.draw(st.sampled_from([0, 5, 99]))}"
        said = broken["to"]
    elif fault == "card":
        broken["to"] = "nobody:1"
        said = "nobody:1"
    elif fault == "itself":
        broken["to"] = broken["from"]
        said = broken["from"]
    elif fault == "taken":
        end = data.draw(st.sampled_from([c["from"] for c in raw["cables"] if c is not broken]))
        broken["to"] = end
        said = end
    else:
        third = data.draw(st.sampled_from([n for n in NAMES if n not in (one, other)]))
        broken["to"] = f"{third}:4"
        said = f"cards {min(one, other)} and {max(one, other)}"

    lines = check(plan(raw))

    assert any(broken["name"] in line for line in lines), lines
    assert any(said in line for line in lines), lines


@given(meshes(), st.integers(0, 5))
def test_a_missing_cable_names_the_cards_and_their_free_ports(
    raw: dict[str, Any], index: int
) -> None:
    gone = raw["cables"].pop(index)

    (line,) = check(plan(raw))

    one, other = sorted(str(gone[end]).partition(":")[0] for end in ("from", "to"))
    assert line.startswith(f"cards {one} and {other}: no cable joins them")
    assert str(gone["from"]) in line
    assert str(gone["to"]) in line
    assert "takes 6 cables" in line


def ring(*ends: tuple[str, int, str, int], layout: str = "ring") -> Plan:
    cables = [cable(f"c{n}", (a, p), (b, q)) for n, (a, p, b, q) in enumerate(ends)]
    return plan({"layout": layout, "cards": [{"name": n} for n in NAMES], "cables": cables})


ROUND = [("north", 1, "east", 1), ("east", 2, "south", 1), ("south", 2, "west", 1),
         ("west", 2, "north", 2)]  # fmt: skip


def test_a_ring_and_its_hops() -> None:
    good = ring(*ROUND)
    assert check(good) == []
    assert hops(good, "north") == {"north": 0, "east": 1, "west": 1, "south": 2}
    # Two cables a side, as the vendor's 2×2 mesh of eight cables has it.
    doubled = [(a, p + 2, b, q + 2) for a, p, b, q in ROUND]
    assert check(ring(*ROUND, *doubled)) == []


def test_an_open_ring_and_an_island() -> None:
    lines = check(ring(*ROUND[:3]))
    assert [line.split(":")[0] for line in lines] == ["card north", "card west"]
    (line,) = check(ring(ROUND[0], ROUND[2], layout="any"))
    assert line == "cards south, west: no path from north"


def test_names_and_devices_are_given_once() -> None:
    lines = check(
        plan(
            {
                "layout": "any",
                "cards": [{"name": "a", "device": "x"}, {"name": "a", "device": "x"}],
                "cables": [],
            }
        )
    )
    assert "card a: the name is used 2 times" in lines
    assert "device x: given to 2 cards" in lines


MESH_TOML = "\n".join(
    [f'[[cards]]\nname = "{n}"\ndevice = "0000:0{i}:00.0"' for i, n in enumerate("abcd", 1)]
    + [
        f'[[cables]]\nname = "{one}{other}"\nfrom = "{one}:{p}"\nto = "{other}:{q}"'
        for one, p, other, q in [("a", 1, "b", 1), ("a", 2, "c", 1), ("a", 3, "d", 1),
                                 ("b", 2, "c", 2), ("b", 3, "d", 2), ("c", 3, "d", 3)]
    ]
)  # fmt: skip


@pytest.fixture
def mesh_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(MESH_TOML)
    return path


def test_toml_and_json_say_the_same(mesh_file: Path, tmp_path: Path) -> None:
    mesh = read(mesh_file)
    other = tmp_path / "plan.json"
    other.write_bytes(orjson.dumps(mesh.model_dump(by_alias=True)))
    assert read(other) == mesh


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.toml", "cards = [", "not TOML"),
        ("p.json", "{", "not JSON"),
        ("p.toml", "layout = 'star'\ncards = []", "layout"),
        ("p.toml", "cards = [{name = 'a', colour = 'red'}]", "cards.0.colour"),
        ("p.toml", "cards = [{name = 'a'}]\ncables = [{name = 'x', from = 'a', to = 'a:1'}]",
         "cable x: 'a' is not CARD:PORT"),
        ("p.json", "[]", "the plan"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_line_and_exit_code_2(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)

    assert run(["doctor", "topology", str(path)]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert str(path) in line


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "topology", str(tmp_path / "gone.toml")]) == 2
    assert "gone.toml" in capsys.readouterr().err


def test_the_command_on_a_good_and_a_bad_plan(
    mesh_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "topology", str(mesh_file)]) == 0
    assert "4 cards, 6 cables, full-mesh, at most 1 hops" in capsys.readouterr().out

    mesh_file.write_text(MESH_TOML.replace('from = "c:3"', 'from = "c:2"'))
    assert run(["doctor", "topology", str(mesh_file)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "cable cd: port c:2 is already taken by cable bc"

    assert run(["doctor", "topology", "--json", str(mesh_file)]) == 1
    assert orjson.loads(capsys.readouterr().out)["errors"] == [line]


BLOCK = """ethernet_connections:
  -
    - chip: {one}
      chan: 8
    - chip: {other}
      chan: 5
"""


def cluster(*joined: tuple[int, int], flow: bool = False) -> str:
    """tt-umd's cluster descriptor, in the block style of newer and the flow style of older."""
    if flow:
        rows = [f"   [{{chip: {a}, chan: 0}}, {{chip: {b}, chan: 2}}],\n" for a, b in joined]
        return (
            "arch: {\n   0: Blackhole,\n}\n\nethernet_connections: [\n" + "".join(rows)
            + "]\n\nchips_with_mmio: [\n   0: 0,\n   1: 1,\n   2: 2,\n   3: 3,\n]\n"
        )  # fmt: skip
    rows = [BLOCK.format(one=a, other=b).partition("\n")[2] for a, b in joined]
    return (
        "arch:\n  0: blackhole\nethernet_connections:\n" + "".join(rows)
        + "ethernet_connections_to_remote_devices: []\n"
        + "chips_with_mmio:\n  - 0: 0\n  - 1: 1\n  - 2: 2\n  - 3: 3\n"
    )  # fmt: skip


ALL = list(combinations(range(4), 2))


@pytest.fixture
def four_boards(tmp_path: Path) -> FakeRig:
    rig = FakeRig(tmp_path / "root")
    for number in range(4):
        rig.tenstorrent(f"0000:0{number + 1}:00.0", number)
    return rig


@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize(
    ("joined", "said"),
    [
        (ALL * 4, []),
        ([e for e in ALL if e != (1, 3)] * 4, ["cable bd (b:3 to d:2): no link is up"]),
        (ALL * 2 + [e for e in ALL if e != (0, 1)] * 2, ["cards a and b: 2 links up"]),
        ([*ALL * 4, (2, 7)], ["chips 2 and 7: linked, but not both in the plan"]),
    ],
)
def test_live_links_of_a_cluster_descriptor(
    joined: list[tuple[int, int]], said: list[str], flow: bool,
    four_boards: FakeRig, mesh_file: Path, tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster(*joined, flow=flow))

    lines = links.against_descriptor(four_boards.machine, read(mesh_file), path)

    assert len(lines) == len(said), lines
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


def test_a_link_that_nobody_planned(four_boards: FakeRig, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster((0, 1), (0, 2)))
    two = plan(
        {
            "layout": "any",
            "cards": [{"name": n, "chip": i} for i, n in enumerate("abc")],
            "cables": [cable("ab", ("a", 1), ("b", 1)), cable("bc", ("b", 2), ("c", 1))],
        }
    )
    lines = links.against_descriptor(four_boards.machine, two, path)
    assert lines == [
        "cable bc (b:2 to c:1): no link is up between these cards",
        "cards a and c: 1 links are up, and no cable is planned",
    ]


def test_a_descriptor_that_is_none_and_cards_without_a_name_to_match(
    four_boards: FakeRig, mesh_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("hello: world\n")
    with pytest.raises(ConfigError, match="not tt-umd's cluster descriptor"):
        links.against_descriptor(four_boards.machine, read(mesh_file), path)
    path.write_text(cluster(*ALL))
    with pytest.raises(ConfigError, match="card a of the plan has no chip"):
        links.against_descriptor(FakeRig(tmp_path).machine, read(mesh_file), path)


def snapshot(live: Callable[[int], str | None]) -> str:
    boards = [
        {"board_info": {"bus_id": f"0000:0{n}:00.0"}, "smbus_telem": {"ETH_LIVE_STATUS": live(n)}}
        for n in range(1, 5)
    ]
    return orjson.dumps({"device_info": boards}).decode()


def test_live_links_that_tt_smi_counts(four_boards: FakeRig, mesh_file: Path) -> None:
    wanted = read(mesh_file)
    four_boards.says("tt-smi -s", snapshot(lambda n: "0x00000fff"))
    assert links.against_tt_smi(four_boards.machine, wanted) == ([], None)

    four_boards.says("tt-smi -s", snapshot(lambda n: "0x3" if n == 2 else "0xfff"))
    (line,), unknown = links.against_tt_smi(four_boards.machine, wanted)
    assert unknown is None
    assert line.startswith("card b (0000:02:00.0): 2 Ethernet cores are live")
    assert all(port in line for port in ("b:1", "b:2", "b:3"))


def test_without_tt_smi_nothing_is_known(four_boards: FakeRig, mesh_file: Path) -> None:
    lines, unknown = links.against_tt_smi(four_boards.machine, read(mesh_file))
    assert (lines, unknown) == ([], "the tool tt-smi is not installed")
    four_boards.says("tt-smi -s", snapshot(lambda n: None))
    lines, unknown = links.against_tt_smi(four_boards.machine, read(mesh_file))
    assert lines == []
    assert "no card of the plan" in (unknown or "")
