"""Decisions at a real Slurm: nodes drained and resumed, jobs requeued, others' reasons kept."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_slurm import SlurmCluster
from standardwebhooks import Webhook

from runner.edge.secrets import new_webhook_secret
from runner.slurm import reason as reasons
from runner.slurm.actuator import START_TRIES, Actuator, Node, SlurmJob
from runner.slurm.commands import SlurmAway
from runner.slurm.reason import Mark

SECRET = new_webhook_secret()
CARD, OTHER = "GPU-4f2a", "GPU-77b1"
COUNTING = """#!/bin/sh
#SBATCH --open-mode=append
trap 'kill $child; exit 0' TERM
step=$(cat checkpoint 2>/dev/null || echo 0)
echo "start at $step on $SLURMD_NODENAME"
while :; do
  step=$((step + 1)); echo $step >checkpoint
  sleep 0.2 & child=$!; wait $child
done
"""


# -- the reason, and the actuator on a fake that fails where it is told ---------------------------

NAMES = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=40)
MARKS = st.builds(Mark.of, st.none() | NAMES, st.sampled_from(["predicted", "lost", "quarantined"]))


@given(st.sets(MARKS, max_size=20))
def test_a_reason_says_what_was_written(marks: set[Mark]) -> None:
    text = reasons.write(marks)
    assert reasons.ours(text)
    assert reasons.read(text) == marks
    assert "\n" not in text
    assert "[" not in text


def test_a_reason_of_somebody_else_has_no_marks() -> None:
    assert reasons.read("NHC: fan GPU-1(lost)") == set()


class FakeSlurm:
    """One node; ``dies_at`` counts down the calls until Slurm is away for once."""

    def __init__(self, reason: str = "", jobs: int = 2, dies_at: int | None = None) -> None:
        self.state = Node(frozenset({"DRAIN"} if reason else {"IDLE"}), reason)
        self.jobs = [SlurmJob(str(n), may_requeue=n != 9) for n in range(jobs)]
        self.dies_at = dies_at
        self.requeued: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.startable: set[str] = set()

    def _called(self) -> None:
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at == 0:
                raise SlurmAway("no answer")

    def node(self, name: str) -> Node | None:
        self._called()
        return self.state

    def drain(self, name: str, reason: str) -> None:
        self._called()
        self.state = Node(frozenset({"DRAIN"}), reason)

    def resume(self, name: str) -> None:
        self._called()
        self.state = Node(frozenset({"IDLE"}), "")

    def jobs_on(self, name: str) -> list[SlurmJob]:
        self._called()
        return list(self.jobs)

    def requeue(self, job_id: str) -> bool:
        self._called()
        assert self.state.closed, "requeued before it was drained: it may come back here"
        self.requeued[job_id] += 1
        self.jobs = [job for job in self.jobs if job.id != job_id]
        return True

    def start_now(self, job_ids: Sequence[str]) -> set[str]:
        self._called()
        self.asked.update(job_ids)
        return set(self.startable) & set(job_ids)


def actuator(slurm: FakeSlurm, *, requeue: bool = True) -> tuple[Actuator, Counter[str]]:
    counts: Counter[str] = Counter()
    return Actuator(slurm, lambda action: counts.update([action]), requeue=requeue), counts


@pytest.mark.parametrize("dies_at", range(1, 9))
def test_cut_off_at_any_step_it_is_done_once_when_it_is_asked_again(dies_at: int) -> None:
    slurm = FakeSlurm(dies_at=dies_at)
    act, counts = actuator(slurm)
    for _ in range(3):
        try:
            act.close("n1", CARD, "predicted")
        except SlurmAway:
            continue
    assert slurm.state.reason == f"rigcanary: {CARD}(predicted)"
    assert slurm.requeued == {"0": 1, "1": 1}
    assert counts["drain"] == 1


def test_two_cards_of_a_node_and_only_the_last_release_resumes() -> None:
    slurm = FakeSlurm()
    act, _ = actuator(slurm)
    act.close("n1", CARD, "predicted")
    act.close("n1", OTHER, "quarantined")
    act.close("n1", CARD, "quarantined")
    assert act.withdraw("n1", CARD) == "others left"
    assert reasons.read(slurm.state.reason) == {
        Mark(CARD, "quarantined"),
        Mark(OTHER, "quarantined"),
    }
    assert act.release("n1", OTHER) == "others left"
    assert act.release("n1", CARD) == "resumed"
    assert act.release("n1", CARD) == "not ours"
    assert not slurm.state.closed


def test_nobody_elses_reason_is_changed_or_cleared() -> None:
    slurm = FakeSlurm(reason="NHC: disk full")
    act, counts = actuator(slurm)
    act.close("n1", CARD, "lost")
    act.release("n1", CARD)
    act.release("n1", None)
    assert slurm.state.reason == "NHC: disk full"
    assert slurm.requeued == {"0": 1, "1": 1}
    assert counts["foreign_reason"] == 1


def test_a_job_that_may_not_be_requeued_runs_on_and_a_quarantine_requeues_none() -> None:
    slurm = FakeSlurm(jobs=10)
    act, counts = actuator(slurm)
    act.close("n1", CARD, "quarantined")
    assert not slurm.requeued
    act.close("n1", CARD, "threshold")
    assert set(slurm.requeued) == {str(n) for n in range(9)}
    assert counts["job_left"] == 1


def test_a_requeued_job_is_started_when_its_last_process_has_ended_and_not_asked_for_ever() -> None:
    slurm = FakeSlurm()
    act, _ = actuator(slurm)
    act.close("n1", CARD, "lost")
    act.start_requeued()
    slurm.startable = {"0"}
    act.start_requeued()
    act.start_requeued()
    assert slurm.asked == {"0": 2, "1": 3}
    slurm.dies_at = 1
    with pytest.raises(SlurmAway):
        act.start_requeued()
    slurm.dies_at = None
    for _ in range(2 * START_TRIES):
        act.start_requeued()
    assert slurm.asked == {"0": 2, "1": START_TRIES}


# -- the process, at a real Slurm ----------------------------------------------------------------


class Process:
    """``rigcanary slurm`` beside the cluster."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.log = folder / "slurm.log"
        self.url = ""
        self.start()

    def start(self) -> None:
        seen = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("ab") as out:
            words = f"-m rigcanary slurm --port 0 --site lab --state {self.log.parent / 'state'}"
            self.process = subprocess.Popen(
                [sys.executable, *words.split()],
                env={**self.cluster.environment, "RIGCANARY_SLURM_WEBHOOK_SECRET": SECRET}
                | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stderr=out,
            )
        deadline = time.monotonic() + 60
        while "taken at" not in self.log.read_text()[seen:]:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        self.url = self.log.read_text().split("taken at ")[-1].split()[0]

    def send(
        self, kind: str, *, webhook_id: str = "msg_1", secret: str = SECRET, **data: Any
    ) -> Any:
        body = {
            "type": kind,
            "timestamp": "2026-01-01T00:00:00Z",
            "data": {"site": "lab", "node": "n1", "device": CARD, **data},
        }
        raw = orjson.dumps(body).decode()
        now = datetime.now(UTC)
        headers = {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign(webhook_id, now, raw),
        }
        return httpx.post(self.url, content=raw, headers=headers, timeout=60)

    def move(self, **data: Any) -> Any:
        return self.send("migration.requested", episode_id="epi_1", cause="predicted", **data)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def process(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Process]:
    found = Process(cluster, tmp_path)
    yield found
    found.process.terminate()
    assert found.process.wait(20) == 0
    for node in ("n1", "n2", "n3", "n4"):
        if cluster.state(node).startswith("dr"):
            cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.run("scancel", "-u", "root")
    cluster.until(lambda: cluster.run("squeue", "-h") == "")


def submit(cluster: SlurmCluster, folder: Path, *words: str) -> tuple[str, str]:
    """A job that counts, and the node it runs on."""
    folder.mkdir()
    script = folder / "job.sh"
    script.write_text(COUNTING)
    job = cluster.run("sbatch", "--parsable", "-D", str(folder), *words, str(script))
    assert job.isdigit(), job
    cluster.until(lambda: cluster.job(job)[0] == "RUNNING")
    return job, cluster.job(job)[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_leaves_a_failing_node_and_goes_on_from_its_checkpoint(
    cluster: SlurmCluster, process: Process, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    job, node = submit(cluster, folder, "--requeue")
    stays, _ = submit(cluster, tmp_path / "stays", "--no-requeue", "-w", node)
    answer = process.move(node=node)
    assert answer.status_code == 200, answer.text
    assert cluster.reason(node).startswith(f"rigcanary: {CARD}(predicted)")
    assert cluster.state(node) == "drng"
    assert cluster.job(stays) == ("RUNNING", node)
    output = folder / f"slurm-{job}.out"
    began = time.monotonic()
    cluster.until(lambda: output.read_text().count("start at") == 2, 180)
    print(f"runs again after {time.monotonic() - began:.1f} s")
    process.process.kill()
    process.process.wait()
    process.start()
    assert process.move(node=node).status_code == 200  # sent again: nobody knew what was done
    first, second = [line.split() for line in output.read_text().splitlines() if "start" in line]
    assert (first[2], first[4]) == ("0", node)
    assert int(second[2]) > 0
    assert second[4] != node
    assert cluster.job(job)[0] == "RUNNING"  # elsewhere, and left alone by the second request
    released = process.send("device.released", webhook_id="msg_2", node=node)
    assert released.status_code == 200
    assert cluster.state(node) in ("mix", "alloc", "idle")
    assert "rigcanary" not in cluster.reason(node)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_it_refuses_and_what_it_leaves_alone(cluster: SlurmCluster, process: Process) -> None:
    assert process.send("migration.requested", secret=new_webhook_secret()).status_code == 401
    assert process.send("migration.requested").status_code == 422  # no cause
    assert process.move(node="ALL").status_code == 422
    assert process.move(node="n1,n2").status_code == 422
    assert process.move(node="n9").json()["detail"] == "unknown node"
    assert process.move(site="other").json()["detail"] == "another site"
    assert {cluster.state(n) for n in ("n1", "n2", "n3", "n4")} == {"idle"}
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=NHC: disk full")
    assert process.move(node="n2").status_code == 200
    assert process.send("device.released", node="n2").json()["detail"] == "not ours"
    assert cluster.reason("n2") == "NHC: disk full"
    assert cluster.state("n2") == "drain"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_while_slurm_is_away_the_sender_is_asked_to_come_again(
    cluster: SlurmCluster, process: Process
) -> None:
    controller = cluster.processes["slurmctld"]
    controller.terminate()
    controller.wait(20)
    answer = process.move(node="n3")
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "30"
    cluster.start_one("slurmctld", "slurmctld", "-D")
    cluster.until(lambda: cluster.state("n3") == "idle")
    assert process.move(node="n3").status_code == 200
    assert cluster.reason("n3").startswith("rigcanary:")
    text = httpx.get(process.url.replace("/v1/webhooks", "/metrics")).text
    assert 'rigcanary_slurm_webhooks_total{outcome="away"} 1.0' in text
    assert 'rigcanary_slurm_actions_total{action="drain"} 1.0' in text
