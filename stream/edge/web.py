"""The worker's small web page, its two JSON lists, health and metrics, over HTTP on loopback."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from contract.errors import ConfigError
from stream.edge.fleet_metrics import CONTENT_TYPE, fleet_exposition
from stream.fleet_view import FleetView

STATIC: Final = Path(__file__).with_name("static")
MAX_LIMIT: Final = 1_000
"""Devices on one page of ``/api/fleet`` at most; a search takes at most 200 characters."""
SORTS: Final = ("risk", "health", "name")

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("fleet.html", "text/html"),
    "/fleet.js": ("fleet.js", "text/javascript"),
    "/fleet.css": ("fleet.css", "text/css"),
}


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _whole(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise web.HTTPBadRequest(text=f"{name} must be a whole number from {low} to {high}\n")
    return int(text)


@web.middleware
async def _headers(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as error:
        error.headers.update(_HEADERS)
        raise
    response.headers.update(_HEADERS)
    return response


def build_app(
    view: FleetView,
    registry: CollectorRegistry,
    not_ready: Callable[[], Sequence[str]],
    *,
    status: Callable[[], Mapping[str, Any]] | None = None,
    stories: Callable[..., list[dict[str, Any]]] | None = None,
    answer: Callable[[str], str | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> web.Application:
    """The web application of a worker.

    ``/metrics`` shows ``registry`` and the devices of ``view``. ``not_ready()`` gives the reasons
    why the worker is not ready, none when it is. ``status()`` is shown as it is under ``worker``
    in ``/api/fleet`` (model version, dry run and the like). ``stories(site, node, device,
    open_only, limit)`` gives what ``/api/episodes`` shows, ``answer(command_id)`` what became of a
    command.
    """

    async def fleet(request: web.Request) -> web.Response:
        sort = request.query.get("sort", "risk")
        if sort not in SORTS:
            raise web.HTTPBadRequest(text=f"sort must be one of {', '.join(SORTS)}\n")
        offset = _whole(request, "offset", 0, 0, 999_999_999)
        limit = _whole(request, "limit", 100, 1, MAX_LIMIT)
        search = request.query.get("search", "")[:200]
        view.tick(clock())
        page = await asyncio.to_thread(
            view.page, offset=offset, limit=limit, sort=sort, search=search
        )
        page["worker"] = {"not_ready": list(not_ready()), **(status() if status else {})}
        return _json(page)

    async def decisions(request: web.Request) -> web.Response:
        return _json({"decisions": view.decisions(_whole(request, "limit", 50, 1, MAX_LIMIT))})

    async def episodes(request: web.Request) -> web.Response:
        found = (stories or _no_stories)(
            site=request.query.get("site", "")[:256],
            node=request.query.get("node", "")[:256],
            device=request.query.get("device", "")[:256],
            open_only=request.query.get("open", "") in ("1", "true"),
            limit=_whole(request, "limit", 50, 1, MAX_LIMIT),
        )
        return _json({"episodes": found})

    async def command(request: web.Request) -> web.Response:
        found = answer(request.match_info["command_id"]) if answer else None
        return _json({"answer": found}, 404 if found is None else 200)

    async def healthz(_: web.Request) -> web.Response:
        reasons = list(not_ready())
        return _json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(_: web.Request) -> web.Response:
        view.tick(clock())
        # A large fleet takes long to write out; the loop has heartbeats to answer meanwhile.
        text = await asyncio.to_thread(lambda: generate_latest(registry) + fleet_exposition(view))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(middlewares=[_headers], client_max_size=1024)
    app.router.add_get("/api/fleet", fleet)
    app.router.add_get("/api/decisions", decisions)
    app.router.add_get("/api/episodes", episodes)
    app.router.add_get("/api/commands/{command_id}", command)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    for path, (name, content_type) in _FILES.items():
        app.router.add_get(path, _file(name, content_type))
    return app


def _no_stories(**_: Any) -> list[dict[str, Any]]:
    return []


def _file(name: str, content_type: str) -> Callable[[web.Request], Any]:
    content = (STATIC / name).read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=content_type, charset="utf-8")

    return serve


class WebServer:
    """Serves an application on one address; ``port`` 0 takes a free one.

    ``start()`` returns the bound port.
    """

    def __init__(self, app: web.Application, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._port = port
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self) -> int:
        """Bind and serve.

        Raises:
            ConfigError: when the address cannot be bound.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"web page: cannot listen on {self._host}:{self._port} ({error.strerror}); "
                "choose another port, or 0 for a free one"
            ) from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()
