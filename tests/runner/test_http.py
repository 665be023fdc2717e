"""The interface over a real socket: signatures, webhooks, alerts, jobs, nodes."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tiny(helpers: Any) -> Callable[..., list[str]]:
    found: Callable[..., list[str]] = helpers.tiny_trainer
    return found


class TestDoors:
    def test_people_need_the_token(self, runner: Any) -> None:
        routes = [
            ("GET", "/v1/jobs"),
            ("POST", "/v1/jobs"),
            ("GET", "/v1/jobs/x"),
            ("DELETE", "/v1/jobs/x"),
            ("GET", "/v1/jobs/x/progress"),
            ("GET", "/v1/nodes"),
            ("POST", "/v1/nodes/rig1/release"),
            ("GET", "/v1/migrations"),
            ("POST", "/v1/alerts"),
        ]
        for method, path in routes:
            for given in (None, "Bearer wrong", "Basic eDp5", "Bearer", "Bearer \u00e9"):
                headers = {} if given is None else {"Authorization": given.encode()}
                answer = runner.anybody.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path, given)
                assert answer.headers["www-authenticate"] == "Bearer"

    def test_open_doors(self, runner: Any) -> None:
        for path in ("/healthz", "/metrics", "/openapi.json", "/docs"):
            assert runner.anybody.get(path).status_code == 200
        page = runner.anybody.get("/docs").text
        assert "http://" not in page
        assert "https://" not in page

    def test_openapi_has_every_route(self, runner: Any) -> None:
        paths = runner.anybody.get("/openapi.json").json()["paths"]
        assert {(p, v) for p, verbs in paths.items() for v in verbs} >= {
            ("/v1/webhooks", "post"),
            ("/v1/alerts", "post"),
            ("/v1/jobs", "get"),
            ("/v1/jobs", "post"),
            ("/v1/jobs/{job_id}", "get"),
            ("/v1/jobs/{job_id}", "delete"),
            ("/v1/jobs/{job_id}/progress", "get"),
            ("/v1/nodes", "get"),
            ("/v1/nodes/{node}/release", "post"),
            ("/v1/migrations", "get"),
            ("/healthz", "get"),
            ("/metrics", "get"),
        }

    def test_metrics_have_no_unbounded_label(self, runner: Any) -> None:
        runner.webhook("something.new", webhook_id="m-1")
        runner.anybody.get("/nonsense/123")
        text = runner.anybody.get("/metrics").text
        assert 'rigcanary_runner_webhooks_total{outcome="ignored",type="other"} 1.0' in text
        assert "nonsense" not in text
        assert 'rigcanary_build_info{process="runner"' in text

    def test_too_large(self, runner: Any) -> None:
        def pieces() -> Any:
            for _ in range(40):
                yield b" " * 65536

        for content in (b" " * (1 << 20) + b"{}", pieces()):
            answer = runner.http.post("/v1/jobs", content=content)
            assert answer.status_code == 413


class TestSignatures:
    def test_a_ping_is_welcome(self, runner: Any) -> None:
        answer = runner.webhook("test.ping")
        assert (answer.status_code, answer.json()["status"]) == (200, "accepted")

    @pytest.mark.parametrize("minutes", [-6, 6])
    def test_stale(self, runner: Any, minutes: int) -> None:
        at = datetime.now(UTC) + timedelta(minutes=minutes)
        assert runner.webhook("test.ping", at=at).status_code == 401

    def test_wrong_secret(self, runner: Any) -> None:
        runner.secret = "whsec_" + "QUJD" * 8
        assert runner.request_migration("rig1", "GPU-1a").status_code == 401
        assert runner.get("/v1/migrations") == []

    def test_malformed_headers(self, runner: Any) -> None:
        now = str(int(datetime.now(UTC).timestamp()))
        usual = {"webhook-id": "a", "webhook-timestamp": now, "webhook-signature": "v1,AAAA"}
        for headers in (
            None,
            {},
            {"webhook-signature": "v1"},
            {"webhook-signature": "v1,%%%"},
            {"webhook-timestamp": "nan"},
            {"webhook-timestamp": "1e300"},
            {"webhook-id": "x" * 300},
            {"webhook-signature": "v2,abc="},
        ):
            for body in (b"{}", b"\xff\xfe"):
                sent = {} if headers is None else {**usual, **headers}
                answer = runner.anybody.post("/v1/webhooks", content=body, headers=sent)
                assert answer.status_code == 401, headers

    def test_signed_nonsense(self, runner: Any) -> None:
        request = '{"type": "migration.requested", "timestamp": "2026-01-01T00:00:00Z", "data": '
        for body in (
            "no json",
            "[]",
            "{}",
            '{"type": "test.ping"}',
            "NaN",
            '{"type": 1, "timestamp": "x", "data": {}}',
            '{"type": "test.ping", "timestamp": "yesterday", "data": {}}',
            request + "{}}",
            request + '{"node": "rig1", "device": null, "episode_id": "e", "cause": "predicted"}}',
            request + '{"node": "rig1", "device": "d", "episode_id": "e", "cause": "boredom"}}',
            request.replace("migration.requested", "device.released") + '{"node": ""}}',
        ):
            answer = runner.webhook("", body=body, webhook_id="bad-1")
            assert answer.status_code == 422, body
            assert answer.json()["detail"]
        # A repaired body under the same id counts: nothing was remembered.
        assert runner.webhook("test.ping", webhook_id="bad-1").json()["status"] == "accepted"


class TestMoves:
    def test_a_job_leaves_the_sick_card_once(self, runner: Any, helpers: Any, tiny: Any) -> None:
        job = runner.submit(command=tiny(), constraints={"prefer": ["GPU-1a"]})
        assert runner.wait_job(job, "running")["device"] == "GPU-1a"
        first = runner.request_migration("rig1", "GPU-1a")
        assert (first.status_code, first.json()["status"]) == (200, "accepted")
        assert len(first.json()["migrations"]) == 1
        again = runner.request_migration("rig1", "GPU-1a")
        assert (again.status_code, again.json()) == (200, {"status": "duplicate", "migrations": []})
        other_id = runner.request_migration("rig1", "GPU-1a", webhook_id="another")
        assert other_id.json() == {"status": "accepted", "migrations": []}
        moved = runner.wait_migration("episode-1")
        assert moved["from"] == {"rank": 0, "node": "rig1", "device": "GPU-1a"}
        assert moved["to"] == {"rank": 0, "node": "rig2", "device": "GPU-2a"}
        assert moved["job"] == job["id"]
        assert [(s["step"], s["outcome"]) for s in moved["steps"]] == [
            (name, "done") for name in ("cordon", "place", "checkpoint", "stop", "start", "confirm")
        ]
        now = runner.wait_job(job, "running")
        assert (now["node"], now["device"], now["generation"]) == ("rig2", "GPU-2a", 2)
        assert len(runner.get("/v1/migrations")) == 1
        helpers.assert_ran_once(now)
        points = runner.get(f"/v1/jobs/{job['id']}/progress")
        assert {p["generation"] for p in points} == {1, 2}
        assert [p["step"] for p in points] == sorted(p["step"] for p in points)
        assert points[0]["device"] == "GPU-1a"
        assert points[-1]["device"] == "GPU-2a"
        assert points[-1]["loss"] < points[0]["loss"]
        fewer = runner.get(f"/v1/jobs/{job['id']}/progress?limit=6")
        assert len(fewer) <= 6
        assert {p["generation"] for p in fewer} == {1, 2}

    def test_two_jobs_two_cards(self, runner: Any, helpers: Any, tiny: Any) -> None:
        here = {"constraints": {"nodes": ["rig1"]}}
        one = runner.submit(command=tiny(), **here)
        two = runner.submit(command=tiny(), **here)
        cards = {runner.wait_job(j, "running")["device"] for j in (one, two)}
        assert cards == {"GPU-1a", "GPU-1b"}
        third = runner.submit(command=tiny(), **here)
        helpers.wait_for(lambda: "no free place" in (runner.job(third)["error"] or ""))
        assert runner.job(third)["state"] == "queued"
        sick = runner.job(one)["device"]
        runner.request_migration("rig1", sick)
        # Nowhere to go within the constraints: the job stays and the migration waits.
        waiting = runner.wait_migration("episode-1", "placing")
        assert waiting["to"] is None
        assert runner.job(one)["state"] == "running"
        assert runner.http.delete(f"/v1/jobs/{two['id']}").status_code == 200
        moved = runner.wait_migration("episode-1")
        assert runner.job(one)["device"] != sick
        assert moved["to"]["device"] == runner.job(one)["device"]
        assert runner.wait_job(two, "cancelled")["ended_at"]
        assert runner.job(third)["state"] == "queued"
        helpers.assert_ran_once(one)
        helpers.assert_ran_once(two)

    def test_a_card_without_a_job_is_cordoned_only(self, runner: Any) -> None:
        runner.request_migration("rig2", "GPU-2a")
        done = runner.wait_migration("episode-1")
        assert (done["job"], done["from"], done["to"]) == (None, None, None)
        assert done["completed_at"]
        node = next(n for n in runner.get("/v1/nodes") if n["node"] == "rig2")
        assert node["devices"][0] == {
            "device": "GPU-2a",
            "cordoned": True,
            "reasons": ["predicted"],
            "jobs": [],
        }

    def test_a_lost_node_moves_every_job_without_a_checkpoint(
        self, runner: Any, helpers: Any, tiny: Any
    ) -> None:
        prefer = {"constraints": {"prefer": ["rig1"], "nodes": ["rig1", "rig3"]}}
        jobs = [runner.submit(command=tiny(slow_stop=1), **prefer) for _ in range(2)]
        for job in jobs:
            assert runner.wait_job(job, "running")["node"] == "rig1"
        answer = runner.request_migration("rig1", None, cause="node_lost")
        assert len(answer.json()["migrations"]) == 2

        def all_done() -> Any:
            found = runner.get("/v1/migrations")
            return found if all(m["state"] == "completed" for m in found) else None

        done = helpers.wait_for(all_done)
        assert {m["job"] for m in done} == {job["id"] for job in jobs}
        for migration in done:
            steps = {s["step"]: s["outcome"] for s in migration["steps"]}
            assert steps["checkpoint"] == "skipped"
            assert migration["device"] is None
        assert {runner.job(job)["node"] for job in jobs} == {"rig3"}
        assert next(n for n in runner.get("/v1/nodes") if n["node"] == "rig1")["cordoned"]

    def test_several_ranks_move_together_and_the_healthy_one_keeps_its_card(
        self, runner: Any, helpers: Any, tiny: Any
    ) -> None:
        code = (
            "import json, os, signal, sys, time\n"
            "stop = []\n"
            "signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
            "with open(os.environ['RIGCANARY_PROGRESS_FILE'], 'a') as file:\n"
            "    step = int(os.environ['RIGCANARY_WORLD_SIZE'])\n"
            "    file.write(json.dumps({'step': step}) + '\\n')\n"
            "while not stop: time.sleep(0.02)\n"
        )
        job = runner.submit(
            command=[sys.executable, "-S", "-c", code],
            world_size=2,
            constraints={"prefer": ["GPU-1a", "GPU-2a"]},
        )
        assert [p["device"] for p in runner.wait_job(job, "running")["places"]] == [
            "GPU-1a",
            "GPU-2a",
        ]
        runner.request_migration("rig2", "GPU-2a")
        moved = runner.wait_migration("episode-1")
        assert (moved["from"]["rank"], moved["from"]["device"]) == (1, "GPU-2a")
        assert {p["device"] for p in runner.job(job)["places"]} == {"GPU-1a", "GPU-1b"}
        assert runner.job(job)["step"] == 2

    def test_withdrawn(self, runner: Any, tiny: Any) -> None:
        job = runner.submit(command=tiny(), constraints={"nodes": ["rig2"]})
        runner.wait_job(job, "running")
        runner.request_migration("rig2", "GPU-2a")
        runner.wait_migration("episode-1", "placing")
        data = {"site": "lab", "node": "rig2", "device": "GPU-2a", "episode_id": "episode-1"}
        runner.webhook("migration.withdrawn", data, webhook_id="w-1")
        assert runner.wait_migration("episode-1", "withdrawn")["completed_at"]
        assert not self._cordoned(runner, "rig2", "GPU-2a")
        assert runner.job(job)["generation"] == 1
        # A withdrawal that overtakes its request leaves it without effect.
        runner.webhook("migration.withdrawn", data | {"episode_id": "e-2"}, webhook_id="w-2")
        assert runner.request_migration("rig2", "GPU-2a", "e-2").json()["migrations"] == []
        assert not self._cordoned(runner, "rig2", "GPU-2a")

    def test_quarantine_and_release_in_any_order(self, runner: Any) -> None:
        data = {"site": "lab", "node": "rig1", "device": "GPU-1b", "reason": "3 false starts"}
        runner.webhook("device.quarantined", data, webhook_id="q-1", sent="2026-01-01T00:00:00Z")
        assert self._cordoned(runner, "rig1", "GPU-1b")
        runner.webhook("device.released", data, webhook_id="r-1", sent="2026-01-01T00:05:00Z")
        assert not self._cordoned(runner, "rig1", "GPU-1b")
        runner.webhook("device.quarantined", data, webhook_id="q-0", sent="2026-01-01T00:04:00Z")
        assert not self._cordoned(runner, "rig1", "GPU-1b"), "older news than the release"
        runner.webhook("device.quarantined", data, webhook_id="q-2", sent="2026-01-01T00:06:00Z")
        assert self._cordoned(runner, "rig1", "GPU-1b")
        released = runner.http.post("/v1/nodes/rig1/release", json={"device": "GPU-1b"})
        assert released.status_code == 200
        assert not self._cordoned(runner, "rig1", "GPU-1b")
        assert runner.http.post("/v1/nodes/nobody/release").status_code == 404

    def test_what_has_no_effect_is_accepted(self, runner: Any) -> None:
        for kind in ("breaker.opened", "breaker.closed", "test.ping", "new.type"):
            assert runner.webhook(kind, webhook_id=kind).status_code == 200

    @staticmethod
    def _cordoned(runner: Any, node: str, device: str) -> bool:
        view = next(n for n in runner.get("/v1/nodes") if n["node"] == node)
        return bool(next(d for d in view["devices"] if d["device"] == device)["cordoned"])


def _alertmanager(labels: dict[str, str], **more: Any) -> dict[str, Any]:
    alert = {
        "status": "firing",
        "labels": {"alertname": "GpuHot", **labels},
        "annotations": {"summary": "hot"},
        "startsAt": "2026-01-01T00:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "c6eadffa33fcdf37",
        **more,
    }
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": alert["status"],
        "receiver": "rigcanary",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": [alert],
    }


class TestAlerts:
    def test_alertmanager_with_dcgm_labels(self, runner: Any, tiny: Any) -> None:
        job = runner.submit(command=tiny(), constraints={"prefer": ["GPU-1a"]})
        runner.wait_job(job, "running")
        labels = {"UUID": "GPU-1a", "gpu": "0", "device": "nvidia0", "Hostname": "rig1"}
        body = _alertmanager(labels)
        reply = runner.http.post("/v1/alerts", json=body).json()["alerts"]
        assert [(a["status"], a["node"], a["device"]) for a in reply] == [
            ("accepted", "rig1", "GPU-1a")
        ]
        again = runner.http.post("/v1/alerts", json=body).json()["alerts"]
        assert [(a["status"], a["migrations"]) for a in again] == [("duplicate", [])]
        resolved = _alertmanager(labels, status="resolved", endsAt="2026-01-01T00:05:00Z")
        assert runner.http.post("/v1/alerts", json=resolved).status_code == 200
        (migration,) = runner.get("/v1/migrations")
        moved = runner.wait_migration(migration["episode_id"])
        assert (moved["source"], moved["cause"], moved["job"]) == ("alert", "threshold", job["id"])
        assert runner.job(job)["device"] != "GPU-1a"

    def test_grafana(self, runner: Any) -> None:
        body = {
            "receiver": "My Super Webhook",
            "status": "firing",
            "orgId": 1,
            "version": "1",
            "title": "[FIRING:2]",
            "state": "alerting",
            "message": "…",
            "truncatedAlerts": 0,
            "groupKey": "{}",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": "https://grafana/",
            "alerts": [
                {
                    "status": "firing",
                    "labels": {"alertname": "Hot", "node": "rig2"},
                    "annotations": {},
                    "startsAt": "2026-01-01T09:51:03.157076+02:00",
                    "endsAt": "0001-01-01T00:00:00Z",
                    "values": {"B": 44.2},
                    "fingerprint": "f1",
                    "generatorURL": "https://grafana/alerting",
                    "silenceURL": "https://grafana/s",
                    "dashboardURL": "",
                    "panelURL": "",
                    "imageURL": "",
                    "valueString": "[ ]",
                },
                {
                    "status": "firing",
                    "labels": {"alertname": "TestAlert", "instance": "Grafana"},
                    "annotations": {},
                    "startsAt": "2026-01-01T09:51:03.157076+02:00",
                    "endsAt": "0001-01-01T00:00:00Z",
                    "values": None,
                    "fingerprint": "f2",
                },
            ],
        }
        reply = runner.http.post("/v1/alerts", json=body).json()["alerts"]
        assert [a["status"] for a in reply] == ["accepted", "ignored"]
        assert next(n for n in runner.get("/v1/nodes") if n["node"] == "rig2")["cordoned"]
        assert runner.http.post("/v1/nodes/rig2/release").status_code == 200
        assert not next(n for n in runner.get("/v1/nodes") if n["node"] == "rig2")["cordoned"]

    def test_what_is_no_notification(self, runner: Any) -> None:
        for body in ({}, {"alerts": [{"status": "maybe"}]}, {"alerts": 3}, []):
            assert runner.http.post("/v1/alerts", json=body).status_code == 422


class TestJobs:
    def test_unusable(self, runner: Any) -> None:
        for job in (
            {},
            {"name": "x"},
            {"name": "x", "command": []},
            {"name": "x", "command": [""]},
            {"name": "x", "command": ["true"], "trainer": {}},
            {"name": "", "command": ["true"]},
            {"name": "x", "command": ["true"], "world_size": 0},
            {"name": "x", "trainer": {}, "world_size": 2},
            {"name": "x", "command": ["true"], "checkpoint_dir": "relative"},
            {"name": "x", "command": ["true"], "constraints": {"nodes": ["a b"]}},
            {"name": "x", "command": ["true"], "colour": "red"},
            {"name": "x", "trainer": {"steps_per_second": -1}},
        ):
            answer = runner.http.post("/v1/jobs", json=job)
            assert answer.status_code == 422, job
            assert answer.json()["detail"]
        for text in (
            '{"name": NaN, "command": ["true"]}',
            '{"name": "\\ud800", "command": ["true"]}',
            '{"name": "x", "trainer": {"learning_rate": Infinity}}',
        ):
            answer = runner.http.post(
                "/v1/jobs", content=text, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 422, text
        answer = runner.http.post("/v1/jobs", content="no json")
        assert answer.status_code == 422
        assert "Content-Type: application/json" in answer.json()["detail"][0]["msg"]
        assert runner.get("/v1/jobs") == []

    def test_a_database_that_cannot_be_written(self, settings: Any, helpers: Any) -> None:
        server = helpers.InThread(settings)
        with server as client:
            database = server.service.engine.store._db
            in_its_thread = server.service._executor.submit
            in_its_thread(database.execute, "PRAGMA query_only=1").result()
            body = {"name": "x", "command": ["true"]}
            assert client.http.post("/v1/jobs", json=body).status_code == 503
            assert client.request_migration("rig1", "GPU-1a").status_code == 503
            in_its_thread(database.execute, "PRAGMA query_only=0").result()
            assert client.request_migration("rig1", "GPU-1a").json()["status"] == "accepted"
            client.close()

    def test_a_defect_ends_the_runner(self, settings: Any, helpers: Any) -> None:
        server = helpers.InThread(settings)
        with server as client:
            server.service.engine.jobs["broken"] = None
            helpers.wait_for(lambda: server.service.failed)
            server.service.engine.jobs.clear()
            client.close()

    def test_runs_to_its_end(self, runner: Any, tiny: Any, tmp_path: Path) -> None:
        folder = str(tmp_path / "checkpoints")
        job = runner.submit(command=tiny(steps=5), checkpoint_dir=folder)
        done = runner.wait_job(job, "completed")
        assert (done["step"], done["exit_code"], done["error"]) == (5, 0, None)
        assert runner.get("/v1/jobs")[0]["id"] == job["id"]
        answer = runner.http.delete(f"/v1/jobs/{job['id']}")
        assert (answer.status_code, answer.json()["state"]) == (200, "completed")

    def test_what_cannot_start_fails_at_once(self, runner: Any) -> None:
        job = runner.submit(command=["/no/such/program"])
        assert "/no/such/program" in runner.wait_job(job, "failed")["error"]

    def test_a_crash_is_started_again_from_the_checkpoint(self, runner: Any, helpers: Any) -> None:
        code = (
            "import os, sys\n"
            "path = os.environ['RIGCANARY_CHECKPOINT_DIR'] + '/seen'\n"
            "if not os.path.exists(path):\n"
            "    open(path, 'w'); print('first time'); sys.exit(3)\n"
        )
        job = runner.submit(command=[sys.executable, "-c", code])
        helpers.wait_for(
            lambda: (
                "first time" in (runner.job(job)["error"] or "")
                or runner.job(job)["state"] == "completed"
            )
        )
        assert runner.wait_job(job, "completed")["generation"] == 2

    def test_one_open_job_a_checkpoint_folder(self, runner: Any, tiny: Any, tmp_path: Path) -> None:
        folder = str(tmp_path / "shared")
        runner.submit(command=tiny(), checkpoint_dir=folder)
        body = {"name": "second", "command": tiny(), "checkpoint_dir": folder}
        assert runner.http.post("/v1/jobs", json=body).status_code == 409

    def test_nobody_knows_it(self, runner: Any) -> None:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/progress")):
            assert runner.http.request(method, f"/v1/jobs/nothing{path}").status_code == 404

    def test_children_get_no_secret_of_the_runner(
        self, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RIGCANARY_RUNNER_TOKEN", "hidden")
        out = tmp_path / "environment"
        code = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
        job = runner.submit(command=[sys.executable, "-c", code])
        runner.wait_job(job, "completed")
        environment = json.loads(out.read_text())
        assert not [name for name in environment if name.startswith("RIGCANARY_RUNNER_")]
        assert environment["RIGCANARY_JOB_ID"] == job["id"]
        assert environment["RIGCANARY_NODE"] == "rig1"
        assert environment["RIGCANARY_DEVICE"] == "GPU-1a"
        assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1a"
