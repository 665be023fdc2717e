"""The main job in full, as a newcomer runs it: minutes of wall time, so it is marked slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from contract.decision import CAUSES
from onebox.facts import unix_seconds
from simulator.story import demo_story


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_the_right_cards_job_moves_exactly_once(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    before = {p.pid for p in psutil.process_iter()}
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "rigcanary",
            "demo",
            "--plain",
            "--rigs",
            "6",
            "--cards",
            "4",
            "--report",
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=640,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    numbers = json.loads((folder / "report.json").read_text())
    story = demo_story(rigs=6, cards=4)
    sick = [f.device for f in story.failures]
    assert (numbers["rigs"], numbers["cards"]) == (6, 24)
    assert [f["device"] for f in numbers["failures"]] == sick
    assert {f["kind"] for f in numbers["failures"]} == {f.kind for f in story.failures}
    assert all(f["cause"] in {*CAUSES, None} for f in numbers["failures"])
    moved = [m for m in numbers["migrations"] if m["job"] is not None]
    assert [m["device"] for m in moved] == sick[:1]
    assert moved[0]["from"]["device"] == sick[0]
    assert moved[0]["to"]["device"] not in sick
    assert unix_seconds(moved[0]["completed_at"]) > unix_seconds(moved[0]["requested_at"])
    assert len({m["episode_id"] for m in numbers["migrations"]}) == len(numbers["migrations"])
    job = numbers["job"]
    assert job["loss_last"] < job["loss_before_move"] < job["loss_first"]
    assert numbers["wall_seconds"] < 600
    assert "<svg" in (folder / "report.html").read_text()
    left = [
        p
        for p in psutil.process_iter(["cmdline"])
        if p.pid not in before and str(tmp_path) in " ".join(p.info["cmdline"] or ())
    ]
    assert not left
    assert not list(tmp_path.glob("rigcanary-demo-*"))
