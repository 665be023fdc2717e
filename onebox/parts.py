"""How the parts of a box are started, and how one knows that each is up."""

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from onebox import toml
from onebox.brokers import PARTITIONS, WORKER_APP
from onebox.child import ChildSpec, rigcanary_argv
from onebox.ports import HOST, choose, free_port

_MIN_BETWEEN_SECONDS: Final = 60.0
_BRIDGE_CLIENT: Final = "rigcanary-onebox-bridge"


@dataclass(frozen=True)
class Ports:
    """Where each part listens on loopback."""

    mqtt: int
    kafka: int
    runner: int
    web: int
    mqtt_v5: int | None = None

    def taken(self) -> set[int]:
        """All of them."""
        return {self.mqtt, self.kafka, self.runner, self.web, self.mqtt_v5 or 0}


def choose_ports(
    *, mqtt: int, kafka: int, runner: int, web: int, mqtt_v5: int | None = None
) -> Ports:
    """The ports asked for, 0 replaced by a free one.

    Raises:
        ConfigError: one is taken or given twice; the message names its option.
    """
    wanted = {
        "--mqtt-port": mqtt,
        "--kafka-port": kafka,
        "--runner-port": runner,
        "--web-port": web,
    }
    if mqtt_v5 is not None:
        wanted["--mqtt-v5-port"] = mqtt_v5
    chosen = choose(wanted)
    return Ports(
        chosen["--mqtt-port"],
        chosen["--kafka-port"],
        chosen["--runner-port"],
        chosen["--web-port"],
        chosen.get("--mqtt-v5-port"),
    )


@dataclass(frozen=True)
class BoxSettings:
    """What a box needs to know. ``runner_nodes`` maps a node's name to its cards.

    ``min_renewal_seconds`` is the least time between two new starts of the embedded Kafka for
    its memory: a load that fills it sooner needs a higher limit.
    """

    state: Path
    ports: Ports
    model: str = "default"
    kafka_memory_bytes: int = 512 * 1024 * 1024
    webhook: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    runner_nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checkpoint_grace_seconds: float = 8.0
    min_renewal_seconds: float = _MIN_BETWEEN_SECONDS

    @property
    def kafka_address(self) -> str:
        return f"{HOST}:{self.ports.kafka}"

    @property
    def mqtt_address(self) -> str:
        return f"{HOST}:{self.ports.mqtt}"

    @property
    def runner_url(self) -> str:
        return f"http://{HOST}:{self.ports.runner}"

    @property
    def web_url(self) -> str:
        return f"http://{HOST}:{self.ports.web}"

    @property
    def token_file(self) -> Path:
        """Holds the bearer token of the runner's HTTP interface."""
        return (self.state / "runner" / "token").resolve()


def new_webhook_secret() -> str:
    """A fresh ``whsec_…`` of 32 random bytes (Standard Webhooks asks for 24 to 64)."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


class Parts:
    """Start specifications of runner, worker and bridge; writes their settings files.

    ``worker_waits_for`` is what the worker last said that it waits for.
    """

    def __init__(self, settings: BoxSettings) -> None:
        self._settings = settings
        self._http = httpx.AsyncClient(timeout=2.0, trust_env=False)
        self.worker_waits_for = ""

    async def close(self) -> None:
        """Close the connections of the probes."""
        await self._http.aclose()

    @property
    def _runner_secret(self) -> Path:
        return self._settings.state / "runner" / "webhook-secret"

    def prepare(self) -> None:
        """Make the secret that worker and runner share, so that neither waits for the other."""
        if not self._runner_secret.exists():
            toml.write_private(self._runner_secret, new_webhook_secret() + "\n")
        (self._settings.state / "worker").mkdir(exist_ok=True)

    def runner(self) -> ChildSpec:
        """The runner; it makes its token at its first start."""
        settings = self._settings
        nodes = [
            {"name": name, "devices": list(devices)}
            for name, devices in settings.runner_nodes.items()
        ]
        config = toml.write(
            settings.state / "runner.toml",
            {"checkpoint_grace_seconds": settings.checkpoint_grace_seconds, "nodes": nodes},
        )
        options = {
            "--port": settings.ports.runner,
            "--state": settings.state / "runner",
            "--config": config,
        }
        return ChildSpec(
            name="runner",
            argv=rigcanary_argv("runner", options),
            ready=lambda: self._answers(f"{settings.runner_url}/healthz"),
            stop_seconds=settings.checkpoint_grace_seconds + 4,
            restart=True,
        )

    def worker(self) -> ChildSpec:
        """The worker, whose decisions go to the runner."""
        settings = self._settings
        config = toml.write(
            settings.state / "worker.toml",
            {
                "model": settings.model,
                "partitions": PARTITIONS,
                "instance": "onebox",
                "app_id": WORKER_APP,
                "receivers": self._receivers(),
            },
        )
        options = {
            "--kafka": settings.kafka_address,
            "--profile": "embedded",
            "--state": settings.state / "worker",
            "--web-port": settings.ports.web,
            "--config": config,
        }
        return ChildSpec(
            name="worker",
            argv=rigcanary_argv("worker", options),
            ready=self._worker_is_ready,
            ready_seconds=300,  # importing and compiling the model, on a busy machine
            stop_seconds=20,  # it stores the open minutes first
            restart=True,
        )

    def _receivers(self) -> list[dict[str, Any]]:
        settings = self._settings
        runner_url = f"{settings.runner_url}/v1/webhooks"
        receivers = [_receiver("runner", runner_url, self._runner_secret)]
        if settings.webhook is not None and settings.webhook_secret is not None:
            own_file = settings.state / "webhook-secret"
            toml.write_private(own_file, settings.webhook_secret + "\n")
            receivers.append(_receiver("webhook", settings.webhook, own_file))
        return receivers

    async def _worker_is_ready(self) -> bool:
        try:
            reply = await self._http.get(f"{self._settings.web_url}/healthz")
            self.worker_waits_for = "; ".join(reply.json().get("reasons", []))
        except (httpx.HTTPError, json.JSONDecodeError):
            return False
        return reply.status_code == httpx.codes.OK

    def bridge(self) -> ChildSpec:
        """The bridge; up once it has subscribed and reached Kafka."""
        settings = self._settings
        port = free_port(settings.ports.taken())
        options = {
            "--mqtt": settings.mqtt_address,
            "--kafka": settings.kafka_address,
            "--profile": "embedded",
            "--client-id": _BRIDGE_CLIENT,
            "--metrics-port": port,
        }
        return ChildSpec(
            name="bridge",
            argv=rigcanary_argv("bridge", options),
            ready=lambda: self._bridge_is_ready(f"http://{HOST}:{port}/metrics"),
            restart=True,
        )

    async def _bridge_is_ready(self, url: str) -> bool:
        try:
            lines = (await self._http.get(url)).text.splitlines()
        except httpx.HTTPError:
            return False
        connected = {f'rigcanary_bridge_connected{{to="{to}"}} 1.0' for to in ("mqtt", "kafka")}
        return connected <= set(lines)

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._http.get(url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


def _receiver(name: str, url: str, secret_file: Path) -> dict[str, Any]:
    return {
        "name": name,
        "url": url,
        "allow_private": True,
        "secret_file": str(secret_file.resolve()),
    }
