"""The page and its lists over HTTP; the page itself in a headless Chromium where there is one."""

import asyncio
import json
import shutil

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from contract.errors import ConfigError
from stream.edge.metrics import WorkerMetrics
from stream.edge.web import WebServer, build_app
from stream.fleet_view import FleetView

M0 = 1_767_225_600


def fill(view, cards, hostile=""):
    for n in range(cards):
        device = f"GPU-{n:05}{hostile}"
        place = {"site": "lab", "node": f"rig{n // 8:03}", "minute": M0}
        view.minute(
            {
                **place,
                "devices": [
                    {
                        "device": device,
                        "index": n % 8,
                        "model": "GeForce GTX 1070 Ti",
                        "samples_ok": 12,
                        "temperature_celsius_mean": 61.0,
                        "power_watts_mean": 140.0,
                    }
                ],
            }
        )
        view.risk(
            {
                **place,
                "devices": [
                    {
                        "device": device,
                        "status": "scored",
                        "completeness": 1.0,
                        "risk_15m": 0.0,
                        "risk_60m": 0.0,
                        "risk_240m": n / cards,
                        "health_score": 100 - 100 * n / cards,
                    }
                ],
            }
        )


@pytest.fixture
async def site():
    """A served view: (view, reasons not to be ready, base URL)."""
    view = FleetView()
    reasons: list[str] = []
    app = build_app(
        view,
        WorkerMetrics(view).registry,
        lambda: reasons,
        status=lambda: {"model_version": "m1", "dry_run": True},
    )
    server = WebServer(app)
    port = await server.start()
    yield view, reasons, f"http://127.0.0.1:{port}"
    await server.stop()


async def get(url):
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, response.headers, await response.text()


async def test_health_follows_readiness(site):
    _, reasons, base = site
    status, _, text = await get(f"{base}/healthz")
    assert (status, json.loads(text)) == (200, {"ready": True, "reasons": []})
    reasons.append("Kafka does not answer")
    status, _, text = await get(f"{base}/healthz")
    assert (status, json.loads(text)["reasons"]) == (503, ["Kafka does not answer"])


async def test_fleet_is_paged_and_sorted(site):
    view, _, base = site
    fill(view, 1_200)
    _, _, text = await get(f"{base}/api/fleet?limit=50&offset=50")
    page = json.loads(text)
    assert len(page["devices"]) == 50
    assert page["devices"][0]["device"] == f"GPU-{1_149:05}"
    assert page["matching"] == page["devices_total"] == 1_200
    assert page["worker"] == {"not_ready": [], "model_version": "m1", "dry_run": True}
    assert len(text) < 60_000


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "offset=-1",
        "offset=99999999999",
        "sort=colour",
        "limit=٣",
    ],
)
async def test_wrong_queries_are_refused(site, query):
    _, _, base = site
    status, headers, text = await get(f"{base}/api/fleet?{query}")
    assert status == 400
    assert "must be" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]


async def test_decisions(site):
    view, _, base = site
    view.decision(
        {"decision_id": "d1", "type": "breaker.opened", "dry_run": False, "data": {"site": "lab"}}
    )
    _, _, text = await get(f"{base}/api/decisions?limit=1")
    assert json.loads(text)["decisions"][0]["decision_id"] == "d1"


async def test_metrics_are_the_workers_and_the_fleets(site):
    view, _, base = site
    fill(view, 8)
    _, headers, text = await get(f"{base}/metrics")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert text.count("rigcanary_temperature_celsius{") == 8
    assert text.count("rigcanary_build_info{") == 1
    assert "process_cpu_seconds_total" in text


async def test_the_page_needs_nothing_from_elsewhere(site):
    _, _, base = site
    whole = ""
    for path in ("/", "/fleet.js", "/fleet.css"):
        status, headers, text = await get(base + path)
        assert status == 200
        assert headers["X-Content-Type-Options"] == "nosniff"
        whole += text
    assert "https://" not in whole
    assert whole.replace("http://www.w3.org/2000/svg", "").count("http://") == 0
    assert "innerHTML" not in whole
    status, _, _ = await get(f"{base}/../pyproject.toml")
    assert status == 404


async def test_a_taken_port_is_said():
    app = build_app(FleetView(), WorkerMetrics().registry, list)
    first = WebServer(app)
    port = await first.start()
    second = WebServer(build_app(FleetView(), WorkerMetrics().registry, list), port=port)
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*another port"):
        await second.start()
    await first.stop()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


async def dom(url, tmp_path, width="1280"):
    """The page's HTML once its scripts have run."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={tmp_path}",
        f"--window-size={width},900",
        "--virtual-time-budget=2000",
        "--dump-dom",
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
async def test_the_page_in_a_browser(site, tmp_path):
    view, _, base = site
    fill(view, 1_200, hostile="<img src=x onerror=document.title='owned'>")
    view.decision(
        {
            "decision_id": "d1",
            "type": "migration.requested",
            "dry_run": False,
            "data": {
                "site": "lab",
                "node": "rig149",
                "device": "GPU-1<b>",
                "cause": "predicted",
                "risk": 0.91,
                "evidence": [{"sensor": "vrm_ripple_volts"}],
                "decided_at": "2026-01-01T00:01:00.000Z",
            },
        }
    )
    html = await dom(base, tmp_path)
    assert "150 rigs, 1200 cards" in html
    assert html.count("<tr>") == 1 + 100  # the head and one page
    assert "1–100 of 1200" in html
    assert html.count("<polyline") == 100
    assert "migration requested lab/rig149/GPU-1&lt;b&gt; · predicted · risk 91 %" in html
    assert "Dry run" in html
    assert "<img" not in html
    assert "owned'&gt;" in html or "onerror" in html  # shown as text
    assert "<title>rigcanary · fleet</title>" in html


async def test_episodes_and_answers_are_served_as_asked_for():
    asked = []

    def stories(**query):
        asked.append(query)
        return [{"episode_id": "ep_1"}]

    registry = CollectorRegistry()
    app = build_app(
        FleetView(), registry, list, stories=stories, answer={"cmd_1": "GPU-a is retired"}.get
    )
    async with TestClient(TestServer(app)) as http:
        reply = await http.get("/api/episodes?node=rig1&device=GPU-a&open=1&limit=5")
        assert await reply.json() == {"episodes": [{"episode_id": "ep_1"}]}
        assert asked == [
            {"site": "", "node": "rig1", "device": "GPU-a", "open_only": True, "limit": 5}
        ]
        assert (await http.get("/api/episodes?limit=x")).status == 400
        assert await (await http.get("/api/commands/cmd_1")).json() == {
            "answer": "GPU-a is retired"
        }
        assert (await http.get("/api/commands/cmd_2")).status == 404
