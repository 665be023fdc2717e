"""A webhook receiver that verifies signatures and notes when each webhook arrived."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
from standardwebhooks import Webhook, WebhookVerificationError


class Receiver:
    """Listens on a free loopback port from the start; ``webhooks`` holds one entry an id.

    An entry is ``(device, type, cause, received at)``, the time in Unix seconds.
    """

    def __init__(self, secret: str) -> None:
        self.webhooks: list[tuple[str, str, str, float]] = []
        self.unverified = 0
        self._ids: set[str] = set()
        self._verifier = Webhook(secret)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Handle one request; returns the HTTP status."""
        at = time.time()
        try:
            self._verifier.verify(body, headers)
        except WebhookVerificationError:
            self.unverified += 1
            return 401
        if headers["webhook-id"] not in self._ids:
            self._ids.add(headers["webhook-id"])
            found = orjson.loads(body)
            data = found["data"]
            self.webhooks.append(
                (str(data.get("device")), found["type"], str(data.get("cause")), at)
            )
        return 204

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps the connection, as real receivers do

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.take(headers, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    return Handler
