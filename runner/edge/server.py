"""Runs the HTTP interface until the process is told to end."""

import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import Final

import uvicorn

from contract.errors import ConfigError
from runner.edge.api import create_app
from runner.edge.metrics import Metrics
from runner.edge.secrets import (
    TOKEN_FILE,
    WEBHOOK_SECRET_FILE,
    TokenCheck,
    WebhookVerifier,
    read_or_make,
)
from runner.edge.service import DATABASE_FILE, Service, take_state
from runner.edge.store import Store
from runner.settings import RunnerSettings

log = logging.getLogger("rigcanary.runner")
DRAIN_SECONDS: Final = 3
"""How long open requests may take when the runner ends."""


def build(settings: RunnerSettings) -> tuple[uvicorn.Server, Service]:
    """Everything that is ready to serve, with its secrets read or made.

    Raises:
        ConfigError: naming the setting that is wrong.
    """
    metrics = Metrics()
    state = settings.state_dir
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = settings.token or read_or_make(state / TOKEN_FILE, make=True)
    secret = settings.webhook_secret or read_or_make(state / WEBHOOK_SECRET_FILE, make=True)
    service = Service(settings, metrics)
    app = create_app(service, TokenCheck(token), WebhookVerifier(secret))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )

    def end() -> None:
        server.should_exit = True

    service.on_failure = end
    return server, service


def serve(settings: RunnerSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Raises:
        ConfigError: when the port is taken or another runner uses the state folder.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    listener = listen(settings.host, settings.port)
    with listener:
        # Tried here for a clear message; the service opens both for itself.
        lock = take_state(settings.state_dir)
        Store(settings.state_dir / DATABASE_FILE).close()
        os.close(lock)
        server, service = build(settings)
        port = listener.getsockname()[1]
        log.info(
            "runner at http://%s:%d, token file %s",
            settings.host,
            port,
            (settings.state_dir / TOKEN_FILE).absolute(),
        )

        def end(_number: int, _frame: FrameType | None) -> None:
            # Before uvicorn listens to signals; and after, when it raises them once more.
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        server.run(sockets=[listener])
    return 0 if server.started and not service.failed else 1


def listen(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        ConfigError: when the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--port {port}: cannot listen on {host}:{port}: {error.strerror}; "
            "stop what uses it, or give another port"
        ) from error
    return listener
