"""The HTTP interface (contracts section 7)."""

import logging
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from posixpath import normpath
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from runner.edge import jobs_page, views
from runner.edge.docs_page import PAGE
from runner.edge.intake import BadBody
from runner.edge.limits import Limits
from runner.edge.messages import MAX_WORLD_SIZE, JobRequest, Notification, ReleaseRequest
from runner.edge.pace import Pace
from runner.edge.replies import (
    AlertsReply,
    Health,
    JobOut,
    MigrationOut,
    NodeOut,
    PointOut,
    WebhookReply,
)
from runner.edge.secrets import Rejected, TokenCheck, WebhookVerifier
from runner.edge.service import Service
from runner.job import Job, JobSpec
from runner.progress import thin

log = logging.getLogger("rigcanary.runner")
MAX_LISTED: Final = 1000
MAX_OPEN_JOBS: Final = 1000
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
PAGE_POLICY: Final = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
)
"""What the page of jobs may load: itself, and answers of this runner."""
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED)]


def create_app(service: Service, token: TokenCheck, verifier: WebhookVerifier) -> FastAPI:
    """The application; opens and closes the service with its own life."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            yield
        finally:
            await service.close()

    bearer = HTTPBearer(auto_error=False, description="The token in STATE/token.")

    def person(
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    ) -> None:
        if given is None or not token(given.credentials):
            raise HTTPException(
                401,
                "a bearer token is needed: Authorization: Bearer TOKEN, from the file that "
                "the runner names at its start",
                {"WWW-Authenticate": "Bearer"},
            )

    app = FastAPI(
        title="rigcanary runner",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description="Runs training jobs and moves them off failing cards.",
    )
    app.add_middleware(
        Limits,
        count=lambda status: service.metrics.requests.labels(status).inc(),
        pace=Pace(service.settings.requests_per_second, service.settings.requests_burst),
    )
    app.add_exception_handler(RequestValidationError, _unusable)
    app.add_exception_handler(sqlite3.Error, _unavailable)
    app.include_router(_open_routes(service, verifier))
    app.include_router(_job_routes(service), dependencies=[Depends(person)])
    app.include_router(_fleet_routes(service), dependencies=[Depends(person)])
    return app


async def _unusable(request: Request, error: Exception) -> JSONResponse:
    # Without the input: it may hold what JSON cannot (NaN), or a secret.
    items = error.errors() if isinstance(error, RequestValidationError) else []
    detail = [{"loc": item["loc"], "msg": item["msg"], "type": item["type"]} for item in items]
    if request.method == "POST" and "json" not in request.headers.get("content-type", ""):
        hint = "send the body as JSON, with the header Content-Type: application/json"
        detail.insert(0, {"loc": ["header", "content-type"], "msg": hint, "type": "content_type"})
    return JSONResponse({"detail": detail}, 422)


async def _unavailable(_: Request, error: Exception) -> JSONResponse:
    log.error("a request could not be stored: %s", error)
    return JSONResponse({"detail": f"the runner's database does not answer: {error}"}, 503)


def _open_routes(service: Service, verifier: WebhookVerifier) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz", responses={503: {"description": "the rounds stand still"}})
    async def healthz(response: Response) -> Health:
        """Whether the runner does its rounds."""
        stalled = service.stalled
        if stalled:
            response.status_code = 503
        return Health(
            status="stalled" if stalled else "ok",
            last_round_seconds=round(service.seconds_since_round, 3),
        )

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.text(), media_type=PROMETHEUS_TEXT)

    @router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(PAGE)

    @router.get("/jobs", response_class=HTMLResponse, include_in_schema=False)
    async def jobs() -> HTMLResponse:
        return HTMLResponse(jobs_page.PAGE, headers={"Content-Security-Policy": PAGE_POLICY})

    @router.post(
        "/v1/webhooks",
        responses={
            401: {"description": "wrong or stale signature"},
            422: {"description": "unusable body"},
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "title": "Standard Webhooks body: type, timestamp, data",
                        },
                    }
                },
            }
        },
    )
    async def webhooks(request: Request) -> WebhookReply:
        """A decision, signed as Standard Webhooks 1.0.0 says; a repeated id changes nothing."""
        raw = await request.body()
        headers = {k.lower(): v for k, v in request.headers.items()}
        try:
            webhook_id = verifier.verify(raw, headers)
        except Rejected as error:
            service.metrics.webhooks.labels("unverified", "rejected").inc()
            raise HTTPException(401, f"webhook not accepted: {error}") from error
        try:
            return await service.call(service.intake.webhook, webhook_id, raw)
        except BadBody as error:
            service.metrics.webhooks.labels("unusable", "rejected").inc()
            raise HTTPException(422, str(error)) from error

    return router


def _job_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    def out(job: Job) -> JobOut:
        return JobOut.of(job, service.engine.clock_ms())

    @router.get("")
    async def list_jobs(limit: Limit = 100) -> list[JobOut]:
        """The newest jobs, newest first."""
        found = await service.call(views.jobs, service.engine, limit)
        return [out(job) for job in found]

    @router.post("", status_code=201, responses={409: {"description": "folder or queue taken"}})
    async def submit(request: JobRequest) -> JobOut:
        """Queue a job; it starts as soon as a place is free."""
        job = make_job(request, service.settings.state_dir, service.engine.clock_ms())

        def queue() -> Job | str:
            jobs = service.engine.jobs.values()
            if len(jobs) >= MAX_OPEN_JOBS:
                return f"{MAX_OPEN_JOBS} jobs are open already; delete some"
            for other in jobs:
                if other.spec.checkpoint_dir == job.spec.checkpoint_dir:
                    return f"checkpoint_dir {job.spec.checkpoint_dir} belongs to job {other.id}"
            return service.engine.submit(job)

        result = await service.call(queue)
        if isinstance(result, str):
            raise HTTPException(409, result)
        return out(result)

    async def find(job_id: str) -> Job:
        job = await service.call(views.job, service.engine, job_id)
        if job is None:
            raise HTTPException(404, f"there is no job {job_id!r}")
        return job

    @router.get("/{job_id}", responses={404: {"description": "no such job"}})
    async def show(job_id: str) -> JobOut:
        """One job."""
        return out(await find(job_id))

    @router.delete("/{job_id}", responses={404: {"description": "no such job"}})
    async def cancel(job_id: str) -> JobOut:
        """Stop a job for good, with a checkpoint. It stays listed; ended jobs are left alone."""
        job = await find(job_id)
        return out(await service.call(service.engine.cancel, job))

    @router.get(
        "/{job_id}/logs",
        response_class=PlainTextResponse,
        responses={404: {"description": "no such job"}},
    )
    async def logs(
        job_id: str, rank: Annotated[int, Query(ge=0, lt=MAX_WORLD_SIZE)] = 0
    ) -> PlainTextResponse:
        """The end of what a process of the job wrote, over all its starts; 64 KiB at most."""
        await find(job_id)
        return PlainTextResponse(await service.call(service.engine.log, job_id, rank))

    @router.get("/{job_id}/progress", responses={404: {"description": "no such job"}})
    async def progress(
        job_id: str, limit: Annotated[int, Query(ge=2, le=4000)] = 500
    ) -> list[PointOut]:
        """The reported steps, thinned evenly to ``limit``; the edges of each start are kept."""
        await find(job_id)
        points = await service.call(service.engine.progress, job_id)
        return [PointOut.of(p) for p in thin(points, limit, lambda p: p.generation)]

    return router


def _fleet_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["fleet"])

    @router.get("/nodes")
    async def nodes() -> list[NodeOut]:
        """The known nodes, their cards, what is cordoned and what runs where."""
        return await service.call(views.nodes, service.engine)

    @router.post("/nodes/{node:path}/release", responses={404: {"description": "no such node"}})
    async def release(node: str, request: ReleaseRequest | None = None) -> NodeOut:
        """Open a node and its cards again, or one card of it."""
        device = request.device if request is not None else None
        if await service.call(service.intake.release, node, device) is None:
            raise HTTPException(404, f"there is no node {node!r}, and nothing of it is cordoned")
        for view in await service.call(views.nodes, service.engine):
            if view.node == node:
                return view
        return NodeOut(node=node, cordoned=False, reasons=[], devices=[], jobs=[])

    @router.get("/migrations", response_model_by_alias=True)
    async def migrations(limit: Limit = 100) -> list[MigrationOut]:
        """The newest migrations, newest first."""
        found: Sequence[Any] = await service.call(views.migrations, service.engine, limit)
        return [MigrationOut.of(m) for m in found]

    @router.post("/alerts")
    async def alerts(notification: Notification) -> AlertsReply:
        """A notification of Alertmanager (webhook version 4) or Grafana.

        A firing alert cordons the card or node that its labels name and moves the jobs there;
        it counts once for its fingerprint and start. A resolved one releases nothing.
        """
        return AlertsReply(alerts=await service.call(service.intake.alerts, notification))

    return router


def make_job(request: JobRequest, state_dir: Path, now_ms: int) -> Job:
    """The job that a request describes, with an id and a checkpoint folder of its own."""
    job_id = f"job-{uuid.uuid4().hex[:12]}"
    folder = state_dir.absolute() / "jobs" / job_id / "checkpoints"
    spec = JobSpec(
        name=request.name,
        command=tuple(request.command) if request.command else None,
        trainer=request.trainer.model_dump() if request.trainer else None,
        world_size=request.world_size,
        checkpoint_dir=normpath(request.checkpoint_dir or str(folder)),  # one spelling a folder
        nodes=tuple(request.constraints.nodes),
        devices=tuple(request.constraints.devices),
        prefer=tuple(request.constraints.prefer),
        min_world_size=request.constraints.min_world_size,
        when_full=request.constraints.when_full,
    )
    return Job(id=job_id, spec=spec, created_ms=now_ms)
