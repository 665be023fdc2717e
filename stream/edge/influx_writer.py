"""Line protocol → InfluxDB 2, one bounded try at a time, by influxdb-client.

Written synchronously: the client's batching mode loses points silently. A batch that the server
refuses for good (400) is halved until the bad points stand alone; those are handed back and the
rest is written. What it cannot take now (429, 5xx, no connection) is the caller's to try again:
points are upserts, so nothing is doubled.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from urllib3.exceptions import HTTPError

from contract.errors import RigcanaryError
from stream.influx_settings import InfluxSettings

BATCH_LINES: Final = 1_000
MAX_RETRY_AFTER_SECONDS: Final = 60.0
TIMEOUT_MS: Final = 10_000
_PERMANENT: Final = frozenset({400, 413, 422})
"""Statuses that trying again does not change; 401 and 404 may be put right meanwhile."""


class Line(NamedTuple):
    """A point in line protocol, and the table that it is of."""

    table: str
    text: str


class Refused(NamedTuple):
    """A point that InfluxDB does not take, and why."""

    line: Line
    why: str


class InfluxAway(RigcanaryError):
    """InfluxDB cannot take points now; ``retry_after_seconds`` if it says when."""

    def __init__(self, why: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_seconds = retry_after_seconds


class InfluxWriter:
    """Writes points to one bucket; blocks, so call it in a thread."""

    def __init__(self, settings: InfluxSettings) -> None:
        """Nothing is connected yet."""
        self._bucket = settings.bucket
        self._client: Any = InfluxDBClient(
            url=settings.url,
            token=settings.token.get_secret_value(),
            org=settings.org,
            timeout=TIMEOUT_MS,
            enable_gzip=True,
        )
        self._api: Any = self._client.write_api(write_options=SYNCHRONOUS)

    def write(self, lines: Sequence[Line]) -> list[Refused]:
        """Write all of ``lines``; returns those that are refused for good.

        Raises:
            InfluxAway: when the server cannot take them now; some may be written already.
        """
        refused: list[Refused] = []
        for i in range(0, len(lines), BATCH_LINES):
            self._write(lines[i : i + BATCH_LINES], refused)
        return refused

    def _write(self, lines: Sequence[Line], refused: list[Refused]) -> None:
        try:
            self._api.write(bucket=self._bucket, record=[line.text for line in lines])
        except InfluxDBError as error:
            status = getattr(error, "status", None)
            if status not in _PERMANENT:
                raise InfluxAway(f"{status} {error.message}", _retry_after(error)) from error
            if len(lines) == 1:
                refused.append(Refused(lines[0], f"{status} {error.message}"))
                return
            half = len(lines) // 2
            self._write(lines[:half], refused)
            self._write(lines[half:], refused)
        except (HTTPError, OSError) as error:
            raise InfluxAway(str(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._api.close()
        self._client.close()


def _retry_after(error: InfluxDBError) -> float | None:
    text = getattr(error, "retry_after", None)
    if not isinstance(text, str) or not text.isdigit():
        return None
    return min(float(text), MAX_RETRY_AFTER_SECONDS)
