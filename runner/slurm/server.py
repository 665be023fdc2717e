"""Takes signed decisions over HTTP and has the actuator carry them out, one after the other."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any, Final, TypeVar

import uvicorn
from prometheus_client import CollectorRegistry, Counter, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract.topics import is_name
from runner.edge.intake import TYPES, BadBody, parse_body
from runner.edge.limits import Limits
from runner.edge.messages import MigrationRequested, Quarantined, Subject, WebhookBody
from runner.edge.pace import Pace
from runner.edge.secrets import WEBHOOK_SECRET_FILE, Rejected, WebhookVerifier, read_or_make
from runner.edge.server import DRAIN_SECONDS, listen
from runner.slurm.actuator import Actuator, Slurm
from runner.slurm.commands import SlurmAway, SlurmCommands, SlurmRefused
from runner.slurm.reason import MANUAL, QUARANTINED
from runner.slurm.settings import SlurmSettings

log = logging.getLogger("rigcanary.slurm")
M = TypeVar("M", bound=BaseModel)

REQUESTS_PER_SECOND: Final = 100.0
REQUESTS_BURST: Final = 1_000
START_EVERY_SECONDS: Final = 1.0


class Receiver:
    """The endpoints. A webhook is answered 2xx only after Slurm has taken all of it.

    Nothing is remembered here: a decision that comes again finds in Slurm what was done.
    """

    def __init__(self, settings: SlurmSettings, slurm: Slurm, verifier: WebhookVerifier) -> None:
        self._settings = settings
        self._verifier = verifier
        self._turn = asyncio.Lock()
        self.registry = CollectorRegistry()
        self._actions = Counter(
            "rigcanary_slurm_actions_total",
            "What was done at Slurm, or found impossible.",
            ["action"],
            registry=self.registry,
        )
        self._webhooks = Counter(
            "rigcanary_slurm_webhooks_total",
            "Webhooks received.",
            ["outcome"],
            registry=self.registry,
        )
        self._actuator = Actuator(slurm, self._count_action, requeue=settings.requeue)

    def _count_action(self, action: str) -> None:
        self._actions.labels(action).inc()

    async def webhook(self, request: Request) -> Response:
        """``POST /v1/webhooks``: 401 not signed, 422 unusable, 503 while Slurm is away."""
        raw = await request.body()
        try:
            self._verifier.verify(raw, {k.lower(): v for k, v in request.headers.items()})
            body = parse_body(raw)
            async with self._turn:
                done = await asyncio.to_thread(self._act, body)
        except Rejected as error:
            return self._answer(401, "rejected", f"webhook not accepted: {error}")
        except BadBody as error:
            return self._answer(422, "unusable", str(error))
        except (SlurmAway, SlurmRefused) as error:
            log.warning("not done, the sender will ask again: %s", error)
            return self._answer(503, "away", str(error))
        return self._answer(200, "done", done)

    def _answer(self, status: int, outcome: str, detail: str) -> Response:
        self._webhooks.labels(outcome).inc()
        headers = {"retry-after": "30"} if status == 503 else None
        return JSONResponse({"status": outcome, "detail": detail}, status, headers)

    def _act(self, body: WebhookBody) -> str:
        if body.type not in TYPES or body.type.startswith(("breaker.", "test.")):
            return "nothing to do"
        data = _data(Subject, body)
        if self._settings.site is not None and data.site != self._settings.site:
            return "another site"
        name = self._slurm_name(data.node)
        if body.type == "migration.requested":
            return self._actuator.close(name, data.device, _data(MigrationRequested, body).cause)
        if body.type == "device.quarantined":
            by = _data(Quarantined, body).by
            return self._actuator.close(name, data.device, MANUAL if by else QUARANTINED)
        if body.type == "migration.withdrawn":
            return self._actuator.withdraw(name, data.device)
        return self._actuator.release(name, data.device)

    def _slurm_name(self, node: str) -> str:
        if node in self._settings.nodes:
            return self._settings.nodes[node]
        # Slurm takes ALL for every node there is; brackets and commas are no part of a name.
        if not is_name(node) or node.upper() == "ALL":
            raise BadBody(f"data.node: {node!r} is not a node's name")
        return node

    async def health(self, _request: Request) -> Response:
        """``GET /healthz``."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        """``GET /metrics``."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._start_requeued())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _start_requeued(self) -> None:
        while True:
            await asyncio.sleep(START_EVERY_SECONDS)
            try:
                async with self._turn:
                    await asyncio.to_thread(self._actuator.start_requeued)
            except (SlurmAway, SlurmRefused) as error:
                log.warning("requeued jobs may wait two minutes: %s", error)

    def app(self) -> Starlette:
        """The ASGI application."""
        pace = Pace(REQUESTS_PER_SECOND, REQUESTS_BURST)
        return Starlette(
            routes=[
                Route("/v1/webhooks", self.webhook, methods=["POST"]),
                Route("/healthz", self.health),
                Route("/metrics", self.metrics),
            ],
            lifespan=self._lifespan,
            middleware=[Middleware(Limits, count=lambda _status: None, pace=pace)],
        )


def _data(model: type[M], body: WebhookBody) -> M:
    try:
        return model.model_validate(body.data)
    except ValidationError as error:
        item = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in item["loc"])
        raise BadBody(f"{body.type} data: {where}: {item['msg']}") from error


def serve(settings: SlurmSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Raises:
        ConfigError: when the port is taken or the secret is not one.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    state = settings.state_dir
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = settings.webhook_secret or read_or_make(state / WEBHOOK_SECRET_FILE, make=True)
    slurm = SlurmCommands(settings.command_seconds)
    receiver = Receiver(settings, slurm, WebhookVerifier(secret))
    options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
    server = uvicorn.Server(
        uvicorn.Config(
            receiver.app(), ws="none", timeout_graceful_shutdown=DRAIN_SECONDS, **options
        )
    )
    with listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        log.info("decisions are taken at http://%s:%d/v1/webhooks", settings.host, port)

        def end(_number: int, _frame: FrameType | None) -> None:
            # Before uvicorn listens to signals; and after, when it raises them once more.
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        server.run(sockets=[listener])
    return 0 if server.started else 1
