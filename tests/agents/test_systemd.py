"""The unit in deploy/, and what the agent tells systemd."""

import configparser
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.edge.notify import Notifier
from agents.settings import AgentSettings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "rigcanary-agent.service"


class Systemd:
    """The receiving end of ``$NOTIFY_SOCKET``."""

    def __init__(self, address: str) -> None:
        self.environment = {"NOTIFY_SOCKET": address}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(20)

    def hears(self) -> dict[str, str]:
        lines = self._socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: Any, tmp_path: Path, unique: str) -> Iterator[Systemd]:
    address = f"@{unique}" if request.param == "abstract" else str(tmp_path / "notify")
    end = Systemd(address)
    yield end
    end.close()


def test_ready_ticks_and_stopping(systemd: Systemd) -> None:
    notifier = Notifier({**systemd.environment, "WATCHDOG_USEC": "60000000"})
    notifier.ready(5.0)
    assert systemd.hears() == {"READY": "1"}
    notifier.ticked("3 ticks")
    assert systemd.hears() == {"WATCHDOG": "1", "STATUS": "3 ticks"}
    notifier.stopping()
    assert systemd.hears() == {"STOPPING": "1"}


def test_a_slow_cadence_asks_for_a_longer_watchdog(systemd: Systemd) -> None:
    Notifier({**systemd.environment, "WATCHDOG_USEC": "60000000"}).ready(300.0)
    assert systemd.hears() == {"READY": "1", "WATCHDOG_USEC": "900000000"}


def test_another_processs_watchdog_is_not_fed(systemd: Systemd) -> None:
    other = {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    Notifier({**systemd.environment, **other}).ticked("x")
    assert systemd.hears() == {"STATUS": "x"}


def test_without_systemd_or_with_a_deaf_one_nothing_happens(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "absent")}):
        notifier = Notifier(environment)
        notifier.ready(5.0)
        notifier.ticked("x")
        notifier.stopping()


AGENT = """
import sys, time
from agents.edge import service
from agents import run
from agents.sampler import Sampler
from agents.settings import AgentSettings, MqttSettings

class Fake:
    name, enumerates = "fake", True
    def read(self, now):
        return []
    def close(self):
        pass

# Sources are guarded: what hangs here is the agent itself.
ticks, tick = [], Sampler.tick
def hanging(sampler, now):
    ticks.append(now)
    if len(ticks) == 4:
        print("hangs", flush=True)
        time.sleep(3600)
    return tick(sampler, now)

Sampler.tick = hanging
run.open_source = lambda name, settings: Fake()
service.serve(AgentSettings(sources=("fake",), interval_seconds=0.1, mqtt=MqttSettings(port=1)))
"""


def test_the_watchdog_is_fed_by_ticks_that_happen_and_by_nothing_else(systemd: Systemd) -> None:
    environment = {**os.environ, **systemd.environment, "WATCHDOG_USEC": "60000000"}
    with subprocess.Popen(
        [sys.executable, "-c", AGENT], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert systemd.hears() == {"READY": "1"}
            for tick in (1, 2, 3):
                heard = systemd.hears()
                assert heard["WATCHDOG"] == "1"
                assert heard["STATUS"].startswith(f"{tick} ticks, no broker")
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            systemd._socket.settimeout(1.0)
            with pytest.raises(TimeoutError):
                systemd.hears()
        finally:
            process.kill()


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_unit_is_of_the_form_and_keeps_its_promises() -> None:
    parser = configparser.ConfigParser(strict=False, allow_no_value=True)
    parser.read_string(UNIT.read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    said = unit()
    assert said["Type"] == ["notify"]
    assert said["WatchdogSec"] == ["60"]
    assert said["StateDirectory"] == ["rigcanary"]
    assert said["RestartPreventExitStatus"] == ["2"]
    assert said["CapabilityBoundingSet"] == ["CAP_SYSLOG"]
    for hardening in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "LockPersonality"):
        assert said[hardening] == ["yes"]
    # These would take the cards or the kernel's log away.
    assert not {"PrivateDevices", "ProtectKernelLogs"} & set(said)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/rigcanary/bin/rigcanary", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # It also looks at units of this machine; what it says of ours is what counts.
    assert UNIT.name not in checked.stderr, checked.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units_exposure_stays_low() -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(UNIT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd cannot look at a unit offline")
    assert result.returncode == 0, result.stdout[-300:] + result.stderr


def test_the_settings_beside_the_unit_are_settings() -> None:
    values = tomllib.loads((ROOT / "deploy" / "systemd" / "agent.toml").read_text())
    settings = AgentSettings.model_validate(values)
    assert settings.metrics_host == "127.0.0.1"
    assert settings.mqtt.username == settings.node, "the ACL goes by the user name"
    assert settings.mqtt.tls
