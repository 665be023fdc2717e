"""One signed POST to one receiver, and what its answer means."""

import asyncio
import math
import socket
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Protocol, Self

import aiohttp
from standardwebhooks import Webhook

from stream.edge.addresses import AddressRefused, public_socket
from stream.payloads import payload
from stream.receivers import Receiver

MAX_ANSWER_BYTES: Final = 65_536
"""An answer's body is read to its end, or to here, and thrown away."""

OUTCOMES: Final = (
    "delivered",
    "gone",
    "redirect",
    "throttled",
    "client_error",
    "server_error",
    "timeout",
    "dns",
    "connect",
    "tls",
    "refused_address",
    "broken_answer",
)
"""What can become of one attempt; the values of the metric's label."""


def package_version() -> str:
    """Version of the installed distribution, ``unknown`` when run from a bare checkout."""
    try:
        return version("rigcanary")
    except PackageNotFoundError:
        return "unknown"


class Clock(Protocol):
    """Wall time; a test brings its own."""

    def time(self) -> float:
        """Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock and the event loop's sleep."""

    def time(self) -> float:
        """Unix seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One webhook for one receiver.

    ``webhook_id`` stays the same over retries and restarts. Webhooks of one ``device_key``
    (``site/node/device``) go in the order they were submitted. ``created_at`` is Unix seconds of
    the wall clock when the outbox took it, from which the 24 hours count; ``None`` is now.
    """

    webhook_id: str
    type: str
    site: str
    device_key: str
    body: bytes = field(repr=False)
    receiver: str
    created_at: float | None = None

    def made_at(self, created_at: float) -> Self:
        """The same with ``created_at`` set."""
        return replace(self, created_at=created_at)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one attempt came to: an outcome of :data:`OUTCOMES` and words for a person.

    ``retry_after`` is in seconds from now, as the receiver asked. ``throttled`` says that the
    whole receiver wants a pause, not just this webhook.
    """

    outcome: str
    detail: str
    retry_after: float | None = None

    @property
    def throttled(self) -> bool:
        return self.outcome in ("throttled", "server_error")


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """``Retry-After`` (seconds or an HTTP date) as seconds from ``now``, ``None`` if unreadable."""
    if value is None:
        return None
    text = value.strip()[:64]
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    seconds = at.timestamp() - now
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def judge(status: int, retry_after: float | None) -> Answer:
    """What an HTTP status means: only 2xx is success, a redirect is not followed."""
    detail = f"answered {status}"
    if 200 <= status < 300:
        return Answer("delivered", detail)
    if status == 410:
        return Answer("gone", detail)
    if 300 <= status < 400:
        return Answer("redirect", f"{detail}; redirects are not followed, set the final URL")
    if status in (429, 502, 504):  # Standard Webhooks names these three as throttling
        return Answer("throttled", detail, retry_after)
    if 400 <= status < 500:
        return Answer("client_error", detail, retry_after)
    return Answer("server_error", detail, retry_after)


class Post:
    """Signs and sends to one receiver; holds its connections.

    Make it inside the running event loop.
    """

    def __init__(self, receiver: Receiver, clock: Clock) -> None:
        self.receiver = receiver
        self._clock = clock
        self._signers = [Webhook(secret) for secret in receiver.secrets]
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self.receiver.max_concurrent,
                socket_factory=None if self.receiver.allow_private else public_socket,
            )
            # No cookies, no proxy from the environment, no decompression of what is thrown away.
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=self.receiver.timeout_seconds),
                headers={"User-Agent": f"rigcanary/{package_version()}"},
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def send(self, outgoing: Outgoing) -> Answer:
        """One attempt, signed for this moment. Never raises for what the other side does."""
        now = self._clock.time()
        shape = payload(self.receiver.format, outgoing.webhook_id, outgoing.body)
        headers = {
            **shape.headers,
            "Content-Type": shape.content_type,
            "webhook-id": outgoing.webhook_id,
            "webhook-timestamp": str(math.floor(now)),
        }
        if self._signers:
            at, text = datetime.fromtimestamp(now, UTC), shape.body.decode()
            headers["webhook-signature"] = " ".join(
                signer.sign(outgoing.webhook_id, at, text) for signer in self._signers
            )
        try:
            async with self._open().post(
                self.receiver.url, data=shape.body, headers=headers, allow_redirects=False
            ) as response:
                asked = retry_after_seconds(response.headers.get("Retry-After"), now)
                answer = judge(response.status, asked)
                if answer.outcome == "delivered":
                    # A 2xx that breaks off may come from a proxy whose receiver never acted.
                    await _read(response)
                return answer
        except TimeoutError:
            return Answer("timeout", f"no answer within {self.receiver.timeout_seconds:g} s")
        except aiohttp.InvalidURL:
            return Answer("connect", "its URL cannot be used; check the host name")
        except aiohttp.ClientConnectorError as error:
            return _cannot_connect(error)
        except (aiohttp.ClientError, OSError) as error:
            return Answer("broken_answer", f"the answer broke off ({type(error).__name__})")


async def _read(response: aiohttp.ClientResponse) -> None:
    left = MAX_ANSWER_BYTES
    async for chunk in response.content.iter_any():
        left -= len(chunk)
        if left <= 0:
            response.close()
            return


def _cannot_connect(error: aiohttp.ClientConnectorError) -> Answer:
    cause = error.os_error
    if isinstance(cause, AddressRefused):
        return Answer(
            "refused_address",
            "its address is not on the public internet; set allow_private = true if that is meant",
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError) or isinstance(cause, socket.gaierror):
        return Answer("dns", f"its host name does not resolve ({cause.strerror})")
    if isinstance(error, aiohttp.ClientConnectorSSLError | aiohttp.ClientConnectorCertificateError):
        return Answer("tls", "TLS failed; check its certificate and name")
    return Answer("connect", f"cannot be reached ({cause.strerror or type(cause).__name__})")
