"""Bounds on request bodies and on their pace, and a count of answers, as plain ASGI."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.edge.pace import Pace

MAX_BODY_BYTES: Final = 1024 * 1024
"""A notification of a few thousand alerts fits."""
BODY_SECONDS: Final = 30.0
"""A sender that drips its body is cut off then; it would hold memory and a connection."""
UNPACED: Final = frozenset({"/healthz", "/metrics"})
"""What watches the runner is never turned away."""


class Limits:
    """Answers 413 to a body over ``MAX_BODY_BYTES``, announced or not, and 429 to haste.

    The body is read here, so that what comes after never sees a part of one.
    """

    def __init__(self, app: ASGIApp, count: Callable[[int], None], pace: Pace) -> None:
        self._app = app
        self._count = count
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
            await send(message)

        client = (scope.get("client") or ("", 0))[0]
        paced = scope["path"] not in UNPACED
        wait = self._pace.wait_seconds(client, time.monotonic()) if paced else 0.0
        if wait > 0:
            slower = JSONResponse(
                {"detail": "too many requests from this address; see Retry-After"},
                429,
                {"retry-after": str(math.ceil(wait)), "connection": "close"},
            )
            await slower(scope, receive, counted_send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        announced = int(length) if length.isdigit() else 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = b"" if announced > MAX_BODY_BYTES else await _read(receive)
        except TimeoutError:
            late = JSONResponse(
                {"detail": f"the body did not come within {BODY_SECONDS:g} s"},
                408,
                {"connection": "close"},
            )
            await late(scope, receive, counted_send)
            return
        if body is None:
            return
        if max(announced, len(body)) > MAX_BODY_BYTES:
            too_large = JSONResponse(
                {"detail": f"the body is over {MAX_BODY_BYTES} bytes"},
                413,
                {"connection": "close"},
            )
            await too_large(scope, receive, counted_send)
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, counted_send)


async def _read(receive: Receive) -> bytes | None:
    """The body, or as much of it as shows that it is too large; None: the sender has gone."""
    parts: list[bytes] = []
    size = 0
    while size <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            break
    return b"".join(parts)
