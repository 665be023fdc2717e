"""The history in InfluxDB 2, by influxdb-client (contracts section 9).

Written synchronously from a thread: the client's batching mode loses points silently. What the
server refuses for good (400) is narrowed down to the bad lines, which are counted and spooled;
what it cannot take now (429, 5xx, no connection) is tried again with jitter, for a bounded
time, and then spooled. Kafka keeps the values longer than that.
"""

import logging
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from pydantic import SecretStr
from urllib3.exceptions import HTTPError

from contract.errors import ConfigError
from stream.edge.backoff import backoff_seconds
from stream.edge.history_thread import STOP_SECONDS, BackgroundHistory, seconds
from stream.edge.line_protocol import LINES

log = logging.getLogger("rigcanary.history")

BATCH_LINES: Final = 1_000
RETRY_SECONDS: Final = 300.0
"""How long a batch is tried before it is spooled; the queue holds the rest meanwhile."""
MAX_RETRY_AFTER_SECONDS: Final = 60.0
MAX_SPOOL_BYTES: Final = 256 * 1024 * 1024
TIMEOUT_MS: Final = 10_000
_PERMANENT: Final = frozenset({400, 413, 422})
"""Statuses that trying again does not change; 401 and 404 may be put right meanwhile."""


class InfluxHistory(BackgroundHistory):
    """Writes the measurements ``minute``, ``risk``, ``decision`` and ``event``.

    ``spool`` is a file of line protocol for what could not be written (``influx write`` reads
    it); without it such lines are counted and lost.
    """

    def __init__(
        self,
        url: str,
        org: str,
        bucket: str,
        token: SecretStr,
        *,
        spool: Path | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Nothing is connected yet.

        Raises:
            ConfigError: when ``url`` is no HTTP address.
        """
        super().__init__("history-influx")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"influx.url {url!r}: it must begin with http:// or https://")
        self._url, self._bucket, self._spool = url, bucket, spool
        self._client: Any = InfluxDBClient(
            url=url, token=token.get_secret_value(), org=org, timeout=TIMEOUT_MS, enable_gzip=True
        )
        self._api: Any = self._client.write_api(write_options=SYNCHRONOUS)
        self._retry_seconds = retry_seconds
        self._rng = random.Random()
        self._stop_at: float | None = None

    def write(self, batch: list[tuple[str, Mapping[str, Any]]]) -> None:
        lines: list[tuple[str, str]] = []
        for table, value in batch:
            try:
                lines += [(table, line) for line in LINES[table](value)]
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.count(table, "failed")
                self.say_once(
                    f"bad {table}", "history: an unusable value of %s: %.200r", table, value
                )
        for i in range(0, len(lines), BATCH_LINES):
            self._write(lines[i : i + BATCH_LINES])

    def begin(self) -> None:
        log.info("history goes to InfluxDB %s, bucket %s", self._url, self._bucket)

    def finish(self) -> None:
        self._api.close()
        self._client.close()

    def _write(self, lines: list[tuple[str, str]]) -> None:
        """Write, trying again while the server is away; spool what cannot be written."""
        attempt, give_up_at = 0, seconds() + self._retry_seconds
        while True:
            try:
                self._api.write(bucket=self._bucket, record=[line for _, line in lines])
                for table, _ in lines:
                    self.count(table, "written")
                if self.say_again("away"):
                    log.info("InfluxDB %s: answers again", self._url)
                return
            except InfluxDBError as error:
                status = getattr(error, "status", None)
                if status in _PERMANENT:
                    self._refused(lines, error)
                    return
                why, retry_after = f"{status} {error}", _retry_after(error)
            except (HTTPError, OSError) as error:
                why, retry_after = str(error), None
            self.say_once("away", "InfluxDB %s: %s; trying again", self._url, why)
            pause = max(backoff_seconds(attempt, self._rng), retry_after or 0.0)
            attempt += 1
            if not self._wait(pause, give_up_at):
                self._give_up(lines)
                return

    def _wait(self, pause: float, give_up_at: float) -> bool:
        """Sleep before the next try; False when the time for trying is over."""
        if self._stopping.is_set() and self._stop_at is None:
            self._stop_at = seconds() + STOP_SECONDS / 2
        until = min(give_up_at, self._stop_at or give_up_at)
        if seconds() + pause > until:
            return False
        if self._stopping.is_set():
            time.sleep(pause)
        else:
            self._stopping.wait(pause)
        return True

    def _refused(self, lines: list[tuple[str, str]], error: InfluxDBError) -> None:
        if len(lines) > 1:
            half = len(lines) // 2
            self._write(lines[:half])
            self._write(lines[half:])
            return
        self.say_once("refused", "InfluxDB %s refuses a point: %s", self._url, error)
        self._give_up(lines)

    def _give_up(self, lines: list[tuple[str, str]]) -> None:
        for table, _ in lines:
            self.count(table, "failed")
        if self._spool is None:
            return
        try:
            self._spool.parent.mkdir(parents=True, exist_ok=True)
            with self._spool.open("a", encoding="utf-8") as file:
                if file.tell() < MAX_SPOOL_BYTES:
                    file.writelines(line + "\n" for _, line in lines)
        except OSError as error:
            self.say_once("spool", "history: %s cannot be written: %s", self._spool, error)


def _retry_after(error: InfluxDBError) -> float | None:
    text = getattr(error, "retry_after", None)
    if not isinstance(text, str) or not text.isdigit():
        return None
    return min(float(text), MAX_RETRY_AFTER_SECONDS)
