"""``python -m rigcanary.probe URL``: exit code 0 when it answers 2xx within four seconds.

Health checks of containers, which have no curl.
"""

import http.client
import sys
import urllib.error
import urllib.request
from typing import Final

SECONDS: Final = 4.0


def answers(url: str) -> bool:
    """Whether a GET of an http:// URL is answered with 2xx."""
    if not url.startswith("http://"):
        return False
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as reply:  # noqa: S310  # checked above
            return bool(200 <= reply.status < 300)
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return False


def main(arguments: list[str]) -> int:
    """The exit code."""
    if len(arguments) != 1:
        print("usage: python -m rigcanary.probe http://HOST:PORT/PATH", file=sys.stderr)
        return 2
    return 0 if answers(arguments[0]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
