"""Export and failure labels: what was recorded becomes a data set that training reads."""

import csv
import json
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.times import rfc3339
from contract.topics import DECISIONS, MINUTES
from models.dataset import Fleet
from rigcanary.cli import run
from stream.edge import labels
from stream.edge.day_table import DayTable
from stream.edge.history_parquet import ParquetHistory
from stream.edge.history_rows import BUILDERS
from stream.edge.history_rows import MINUTES as MINUTES_SPEC

DAY = 1_767_225_600


def minute(node: str, at: int, mean: float = 50.0) -> dict:
    return {
        "schema": "rigcanary.minutes/1", "site": "lab", "node": node, "minute": at,
        "messages": 12, "interval_seconds": 5.0,
        "devices": [{"device": f"GPU-{node}", "index": 0, "samples": 12,
                     "temperature_celsius_mean": mean, "temperature_celsius_count": 12}],
    }  # fmt: skip


def decision(kind: str, episode: str, device: str | None, at: int, dry_run: bool = False) -> dict:
    return {
        "schema": "rigcanary.decision/1", "decision_id": f"{kind}{episode}{dry_run}", "type": kind,
        "dry_run": dry_run, "decided_ms": at * 1000,
        "data": {"site": "lab", "node": "r1", "device": device, "episode_id": episode},
    }  # fmt: skip


DECISIONS_MADE = [
    decision("migration.requested", "e1", "GPU-r1", DAY + 600),
    decision("migration.requested", "e2", "GPU-r2", DAY + 700),
    decision("device.released", "e2", "GPU-r2", DAY + 900),
    decision("migration.requested", "e3", "GPU-r3", DAY + 800, dry_run=True),
    decision("migration.requested", "e4", None, DAY + 800),
    decision("breaker.opened", "e5", None, DAY + 800),
]


async def keep(folder: Path) -> None:
    history = ParquetHistory(folder)
    await history.start()
    for day in range(2):
        for m in range(70):
            for node in ("r1", "r2", "r3"):
                history.minutes(minute(node, DAY + day * 86_400 + m * 60))
    history.minutes(minute("r1", DAY, 77.0))
    for value in DECISIONS_MADE:
        history.decision(value)
    await history.stop()


def read_csv(path: Path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("where", ["history", "worker/history", "."])
async def test_state_to_data_set_that_training_reads(tmp_path, where, capsys):
    state, out = tmp_path / "state", tmp_path / "sets" / "fleet"
    await keep(state / where)
    assert run(["failure", "GPU-r2", "--at", str(DAY + 86_400 + 60 * 60), "--kind", "fan, bearing",
                "--state", str(state)]) == 0  # fmt: skip
    capsys.readouterr()
    assert run(["export", "--state", str(state), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": str(out), "minute_rows": 420, "devices": 3, "days": 2, "failures": 1, "moves": 1,
        "unusable_records": 0,
    }  # fmt: skip
    assert read_csv(out / "moves.csv") == [
        {"device": "GPU-r1", "moved_at": rfc3339((DAY + 600) * 1000)}
    ]
    table = pq.read_table(out / "minutes.parquet")
    assert table.num_rows == 420
    with Fleet(out) as fleet:
        cards = {d.device: d for d in fleet.devices()}
        assert cards.keys() == {"GPU-r1", "GPU-r2", "GPU-r3"}
        assert len(cards["GPU-r3"].minute_M) == 140
        assert len(cards["GPU-r2"].minute_M) < 140  # nothing after its failure
        assert len(cards["GPU-r1"].minute_M) == 10  # nothing after it was moved
        assert cards["GPU-r2"].outcome.kind == "fan, bearing"


async def test_the_history_folder_itself_is_a_data_set_before_it_is_folded(tmp_path):
    table = DayTable(tmp_path, MINUTES_SPEC)
    for mean in (1.0, 2.0, 3.0):
        table.append(BUILDERS["minutes"]([minute("r1", DAY, mean), minute("r2", DAY, mean)]))
    labels.write(tmp_path / "failures.csv", [])
    with Fleet(tmp_path) as fleet:
        found = list(fleet.devices())
    assert [len(d.minute_M) for d in found] == [1, 1]
    names = list(pq.read_schema(next(table.folder.glob("*.parquet"))).names)
    assert "temperature_celsius_mean" in names
    assert {3.0} <= set(found[0].rows_MC[0].tolist())


async def test_kafka_to_data_set(tmp_path, own_kafka, capsys):
    producer = AIOKafkaProducer(bootstrap_servers=own_kafka.address)
    await producer.start()
    for m in range(30):
        for node in ("r1", "r2"):
            row = orjson.dumps(minute(node, DAY + 60 * m))
            await producer.send_and_wait(MINUTES, row, key=f"lab/{node}".encode())
    await producer.send_and_wait(MINUTES, b"nonsense")
    await producer.send_and_wait(MINUTES, b'{"devices": 7}')
    corrected = orjson.dumps(minute("r1", DAY, 77.0))
    await producer.send_and_wait(MINUTES, corrected, key=b"lab/r1")
    for value in DECISIONS_MADE:
        await producer.send_and_wait(DECISIONS, orjson.dumps(value), key=b"lab/r1")
    await producer.stop()
    out = tmp_path / "fleet"
    from stream.edge.export import export_kafka

    exported = await export_kafka(own_kafka.address, out, None)
    assert exported.summary() | {"out": ""} == {
        "out": "", "minute_rows": 60, "devices": 2, "days": 1, "failures": 0, "moves": 1,
        "unusable_records": 2,
    }  # fmt: skip
    rows = pq.read_table(out / "minutes.parquet").to_pylist()
    first = [r for r in rows if r["node"] == "r1" and r["minute"].timestamp() == DAY]
    assert [r["temperature_celsius_mean"] for r in first] == [77.0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fleet"]  # nothing temporary is left
    with pytest.raises(ConfigError, match="not empty"):
        await export_kafka(own_kafka.address, out, None)
    own_kafka.stop()
    own_kafka.start()  # its memory is empty now
    with pytest.raises(ConfigError, match=r"no topic rigcanary\.minutes"):
        await export_kafka(own_kafka.address, tmp_path / "other", None)


def test_what_is_wrong_is_one_line(tmp_path, capsys, free_port):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    nowhere = f"127.0.0.1:{free_port()}"
    for arguments, code, word in (
        (["export", "--out", str(tmp_path / "o")], 2, "--state DIR or --kafka"),
        (["export", "--out", str(tmp_path / "o"), "--state", str(tmp_path)], 2, "no history"),
        (["export", "--out", str(tmp_path / "full"), "--kafka", nowhere], 2, "not empty"),
        (["export", "--out", str(tmp_path / "o"), "--kafka", "x"], 2, "HOST:PORT"),
        (["export", "--out", str(tmp_path / "o"), "--kafka", nowhere], 1, nowhere),
        (["failure", "GPU", "--at", "yesterday", "--state", str(tmp_path)], 2, "RFC 3339"),
        (["failure", "GPU", "--at", "2026-01-01T00:00:00", "--state", str(tmp_path)], 2, "offset"),
        (["failure", "GPU", "--at", "12", "--state", str(tmp_path)], 2, "century"),
        (["failure", "GPU", "--at", "99999999999", "--state", str(tmp_path)], 2, "future"),
        (["failure", "", "--at", "1767225600", "--state", str(tmp_path)], 2, "DEVICE"),
        (["failure", "G", "--at", "1767225600", "--kind", "a\nb", "--state", "x"], 2, "--kind"),
    ):
        assert run(arguments) == code, arguments
        out, err = capsys.readouterr()
        assert out == ""
        assert word in err, arguments
        assert len(err.strip().splitlines()) == 1, err


def test_labels_are_kept_and_duplicates_said(tmp_path, capsys):
    base = ["failure", "GPU-1", "--at", "2026-01-01T01:00:00+01:00", "--state", str(tmp_path)]
    assert run([*base, "--kind", "memory"]) == 0
    assert "recorded" in capsys.readouterr().out
    assert run([*base, "--kind", "memory"]) == 0
    assert "already" in capsys.readouterr().out
    assert run([*base, "--kind", "fan"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert run([*base, "--kind", "fan", "--replace"]) == 0
    assert run(["failure", "GPU-2", "--at", "1767225600.5", "--state", str(tmp_path)]) == 0
    assert read_csv(tmp_path / "failures.csv") == [
        {"device": "GPU-1", "failed_at": "2026-01-01T00:00:00.000Z", "kind": "fan"},
        {"device": "GPU-2", "failed_at": "2026-01-01T00:00:00.500Z", "kind": ""},
    ]


def test_a_file_that_is_none_is_named(tmp_path):
    (tmp_path / "failures.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="first line"):
        labels.read(tmp_path / "failures.csv")
    (tmp_path / "failures.csv").write_text("device,failed_at\nGPU,\n")
    with pytest.raises(ConfigError, match="line 2"):
        labels.read(tmp_path / "failures.csv")


label = st.builds(
    labels.Failure,
    st.from_regex(r"[!-~]{1,40}", fullmatch=True),
    st.integers(946_684_800_000, 4_000_000_000_000),
    st.text(max_size=20).map(lambda text: "".join(c for c in text if c.isprintable())),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(label, max_size=8))
def test_labels_survive_the_file(tmp_path_factory, failures):
    path = tmp_path_factory.mktemp("labels") / "failures.csv"
    labels.write(path, failures)
    assert labels.read(path) == failures
