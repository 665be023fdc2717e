"""The health checks' probe against a real HTTP server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rigcanary.probe import answers, main


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answer) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_only_2xx_is_healthy(server: str) -> None:
    assert main([f"{server}/200"]) == 0
    assert main([f"{server}/204"]) == 0
    assert main([f"{server}/503"]) == 1
    assert main([f"{server}/404"]) == 1


def test_nobody_there_and_other_schemes_are_not() -> None:
    assert not answers("http://127.0.0.1:9/")
    assert not answers("file:///etc/hostname")
    assert main([]) == 2
