"""Dashboards and provisioning: made by their scripts, on metrics that exist, no panel empty."""

import asyncio
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml  # type: ignore[import-untyped]  # no types without another package
from exported_metrics import exported

from contract.minute import COLUMNS

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "grafana"
BOARDS = {p.stem: json.loads(p.read_text()) for p in (GRAFANA / "dashboards").glob("*.json")}
UIDS = {"rigcanary-prometheus", "rigcanary-influxdb"}
RECORDED = set(re.findall(r"record: (\S+)", (ROOT / "deploy/prometheus/rules.yml").read_text()))


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"grafana_{name}", GRAFANA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def provisioned(name: str) -> Any:
    return yaml.safe_load((GRAFANA / "provisioning" / name).read_text())


def queries() -> list[tuple[str, str, str]]:
    """(dashboard, panel, PromQL) of every panel."""
    return [
        (name, panel["title"], target["expr"])
        for name, board in sorted(BOARDS.items())
        for panel in board["panels"]
        for target in panel["targets"]
        if "expr" in target
    ]


def test_the_files_are_what_the_scripts_make() -> None:
    made = script("build").rendered()
    assert {n: json.dumps(b, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
            for n, b in BOARDS.items()} == made  # fmt: skip
    rules = (GRAFANA / "provisioning/alerting/rules.yaml").read_text()
    assert rules == script("provision").rendered()


def test_dashboards_have_fixed_uids_and_panels_that_say_what_to_do() -> None:
    assert set(BOARDS) == {"fleet", "rig", "card", "training", "pipeline"}
    for name, board in BOARDS.items():
        assert board["uid"] == f"rigcanary-{name}"
        for panel in board["panels"]:
            assert panel["description"], panel["title"]
            assert panel["datasource"]["uid"] in UIDS
    declared = {d["uid"] for d in provisioned("datasources/rigcanary.yaml")["datasources"]}
    assert declared == UIDS


def test_no_query_asks_for_a_metric_that_nobody_exports() -> None:
    known = exported() | RECORDED
    for board, panel, expr in queries():
        bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", expr)
        for name in re.findall(r"(?:site:)?rigcanary_[a-z_]+(?::\w+)?", bare):
            root = re.sub(r"_(bucket|sum|count)$", "", name)
            assert {name, root} & known, (board, panel, name)


def test_flux_asks_for_what_the_sink_writes() -> None:
    written = {
        "minute": set(COLUMNS),
        "risk": {"risk_15m", "risk_60m", "risk_240m", "health_score"},
        "event": {"message"},
    }
    found = 0
    for board in BOARDS.values():
        targets = [t for p in board["panels"] for t in p["targets"] if "query" in t]
        targets += [a["target"] for a in board["annotations"].get("list", []) if "target" in a]
        for target in targets:
            measurement = re.search(r'_measurement == "(\w+)"', target["query"])
            fields = re.search(r'_field (?:=~ /\^\((.*)\)\$/|== "(\w+)")', target["query"])
            assert measurement is not None
            assert fields is not None
            asked = set((fields[1] or fields[2]).split("|"))
            assert asked <= written[measurement[1]]
            found += 1
    assert found >= 12


def test_alert_rules_avoid_the_traps_of_provisioning() -> None:
    groups = provisioned("alerting/rules.yaml")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    shipped = re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/rules.yml").read_text())
    assert [rule["title"] for rule in rules] == shipped
    assert len({rule["uid"] for rule in rules}) == len(rules)
    for rule in rules:
        assert re.fullmatch(r"[a-z_]{1,40}", rule["uid"])
        assert rule["condition"] in {query["refId"] for query in rule["data"]}
        for query in rule["data"]:
            assert query["relativeTimeRange"]["from"] > 0
            assert query["datasourceUid"] in {*UIDS, "__expr__"}
        assert rule["data"][0]["model"]["instant"] is True
        assert "$value " not in str(rule["annotations"])
    names = {p["name"] for p in provisioned("alerting/contact-points.yaml")["contactPoints"]}
    policy = provisioned("alerting/policies.yaml")["policies"][0]
    used = {policy["receiver"], *(route["receiver"] for route in policy["routes"])}
    assert used == names
    # One fixes the folder by its name, the other must not give it an uid: two folders otherwise.
    provider = provisioned("dashboards/rigcanary.yaml")["providers"][0]
    assert provider["folder"] == groups[0]["folder"]
    assert "folderUid" not in provider


# -- against a real Prometheus ----------------------------------------------------------------

EVENTFUL = {
    # panel: the event that it waits for
    "Loss": "a job that reports",
    "Goodput": "a job that reports twice",
    "Steps a second": "a job that reports twice",
    "Step": "a job that reports",
    "Champion and challenger": "a challenger in a registry",
    "Drift of features": "two hundred looks at windows",
    "Moves in a day": "a move that completed",
    "Moves that failed": "a move that failed",
    "Length of a move": "a move that completed",
    "Decision to delivery, 99 %": "a delivered decision",
    "Dead letters and repairs": "bad input",
    "Errors": "a failure of a program",
    "What changed in the last hour": "a decision",
    "Cards out of service or in trouble": "a card in trouble",
    "Lost or hung": "a card in trouble",
    "Unhealthy": "a card in trouble",
    "Dead letters in an hour": "bad input",
    "Delivery attempts": "a second attempt within five minutes",
}
"""Panels that may be empty on a quiet site, and must say nothing false then."""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its address and the file of its targets."""
    found = shutil.which("prometheus", path="/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    targets = tmp_path / "targets.json"
    targets.write_text("[]")
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{ROOT}/deploy/prometheus/rules.yml']\n"
        "scrape_configs:\n  - job_name: rigcanary-worker\n"
        f"    file_sd_configs: [{{files: ['{targets}'], refresh_interval: 1s}}]\n"
    )
    port = _free_port()
    process = subprocess.Popen(
        [found, f"--config.file={tmp_path}/prometheus.yml",
         f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={tmp_path}/data"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}", targets
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_panel_shows_something_on_a_running_site(
    prometheus: tuple[str, Path], tmp_path: Path
) -> None:
    address, targets = prometheus
    with (tmp_path / "demo.log").open("w") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "rigcanary", "demo", "--plain", "--report", str(tmp_path / "r")],
            cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            seen = asyncio.run(_watch(address, targets, demo))
        finally:
            for child in psutil.Process(demo.pid).children(recursive=True):
                child.terminate()
            demo.terminate()
            demo.wait(60)
    empty = {(board, panel) for board, panel, expr in queries() if not seen.get(expr)}
    unexpected = {pair for pair in empty if pair[1] not in EVENTFUL}
    assert not unexpected, (unexpected, (tmp_path / "demo.log").read_text()[-2000:])


async def _watch(address: str, targets: Path, demo: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Which queries returned series at some time of the demo."""
    seen: dict[str, int] = {}
    asked = sorted({expr for _, _, expr in queries()})
    until = time.monotonic() + 400
    async with httpx.AsyncClient(timeout=10) as http:
        while time.monotonic() < until and demo.poll() is None:
            _tell(targets, demo.pid)
            for expr in asked:
                if seen.get(expr):
                    continue
                plain = re.sub(r"\$(site|node|device)", ".*", expr)
                try:
                    reply = await http.get(f"{address}/api/v1/query", params={"query": plain})
                except httpx.TransportError:
                    break  # Prometheus is starting
                answer = reply.json()
                assert answer["status"] == "success", (expr, answer)
                seen[expr] = len(answer["data"]["result"])
            must = {e for _, panel, e in queries() if panel not in EVENTFUL}
            if all(seen.get(expr) for expr in must):
                break
            await asyncio.sleep(2)
    return seen


def _tell(targets: Path, pid: int) -> None:
    targets.write_text(json.dumps([{"targets": sorted(_listening(pid))}]))


def _listening(pid: int) -> set[str]:
    """Addresses of the demo's processes that answer /metrics."""
    found: set[str] = set()
    for child in psutil.Process(pid).children(recursive=True):
        try:
            words = child.cmdline()
            ports = {c.laddr.port for c in child.net_connections("tcp") if c.status == "LISTEN"}
        except psutil.Error:
            continue
        if any(word in ("worker", "bridge", "runner") for word in words):
            found |= {f"127.0.0.1:{port}" for port in ports}
    return found
