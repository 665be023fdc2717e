"""A bound on request bodies, and a count of answers, as plain ASGI."""

from collections.abc import Callable
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES: Final = 1024 * 1024
"""A notification of a few thousand alerts fits."""


class _TooLarge(Exception):
    pass


class Limits:
    """Answers 413 to a body over ``MAX_BODY_BYTES``, also one sent in pieces."""

    def __init__(self, app: ASGIApp, count: Callable[[int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        read = 0

        async def counted_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._count(message["status"])
            await send(message)

        async def bounded_receive() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > MAX_BODY_BYTES:
                    raise _TooLarge
            return message

        too_large = JSONResponse(
            {"detail": f"the body is over {MAX_BODY_BYTES} bytes"}, 413, {"connection": "close"}
        )
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            await too_large(scope, receive, counted_send)
            return
        try:
            await self._app(scope, bounded_receive, counted_send)
        except _TooLarge:
            if not started:
                await too_large(scope, receive, counted_send)
