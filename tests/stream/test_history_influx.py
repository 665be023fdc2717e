"""The InfluxDB history against a strict stand-in (no InfluxDB 2 was run)."""

import gzip
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from contract.errors import ConfigError
from contract.minute import COLUMNS
from stream.edge import history_influx
from stream.edge.history import InfluxHistory
from stream.edge.line_protocol import LINES

DAY = 1_767_225_600

LINE = re.compile(
    r"(?P<measurement>minute|risk|decision|event)"
    r"(?P<tags>(?:,(?:device|node|site)=(?:\\.|[^ ,=\\])+)*) "
    r"(?P<fields>[a-z0-9_]+=(?:\"(?:\\.|[^\"\\])*\"|[^,\" ]+)"
    r"(?:,[a-z0-9_]+=(?:\"(?:\\.|[^\"\\])*\"|[^,\" ]+))*) (?P<ts>\d+)"
)
FIELD = re.compile(r"([a-z0-9_]+)=(\"(?:\\.|[^\"\\])*\"|[^,\" ]+)")


class Refused(Exception):
    """What the stand-in answers 400 to."""


class Influx:
    """A server for /api/v2/write that is as strict as line protocol; answers from a script."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, str, str], dict[str, str]] = {}
        self.types: dict[tuple[str, str], str] = {}
        self.script: list[tuple[int, dict[str, str]]] = []
        self.requests: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers = outer.answer(self.path, dict(self.headers), body)
                outer.requests.append(status)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def answer(self, path: str, headers: dict, body: bytes) -> tuple[int, dict[str, str]]:
        url = urlsplit(path)
        query = parse_qs(url.query)
        if headers.get("Authorization") != "Token secret":
            return 401, {}
        if url.path != "/api/v2/write" or query["bucket"] != ["rigcanary"]:
            return 404, {}
        if self.script:
            return self.script.pop(0)
        if headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            self.points.update(self.parse(body.decode(), query.get("precision", ["ns"])[0]))
        except Refused:
            return 400, {}
        return 204, {}

    def parse(self, text: str, precision: str) -> dict:
        assert precision == "ns"
        points = {}
        types = dict(self.types)
        for line in text.split("\n"):
            match = LINE.fullmatch(line)
            if match is None:
                raise Refused(line)
            fields = dict(FIELD.findall(match["fields"]))
            for name, value in fields.items():
                kind = type_of(value)
                if types.setdefault((match["measurement"], name), kind) != kind:
                    raise Refused(f"{name}: {kind}")
            key = (match["measurement"], match["tags"], match["ts"])
            points[key] = fields
        self.types = types
        return points


def type_of(value: str) -> str:
    if value.startswith('"'):
        return "string"
    if value in ("true", "false"):
        return "boolean"
    if re.fullmatch(r"-?\d+i", value):
        return "integer"
    try:
        number = float(value)
    except ValueError as error:
        raise Refused(value) from error
    if number != number or number in (float("inf"), float("-inf")):
        raise Refused(value)
    return "float"


@pytest.fixture
def influx():
    server = Influx()
    server.thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    server.thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(history_influx, "backoff_seconds", lambda attempt, rng: 0.01)


def history(server: Influx, **more: object) -> InfluxHistory:
    return InfluxHistory(server.url, "rigcanary", "rigcanary", SecretStr("secret"), **more)  # type: ignore[arg-type]


def minute(node: str, at: int, **columns: object) -> dict:
    return {
        "schema": "rigcanary.minutes/1", "site": "lab a", "node": node, "minute": at,
        "messages": 12, "interval_seconds": 5.0,
        "devices": [{"device": "GPU-1", "index": 0, "samples": 12, **columns}],
    }  # fmt: skip


DECISION = {
    "schema": "rigcanary.decision/1", "decision_id": "dec_1", "type": "migration.requested",
    "dry_run": False, "decided_ms": DAY * 1000,
    "data": {"site": "lab", "node": "r1", "device": None, "cause": "node_lost", "risk": 1,
             "note": 'a "quoted" \\ line\nbreak'},
}  # fmt: skip
EVENT = {
    "schema": "rigcanary.event/1", "site": "lab", "node": "r1", "boot_id": "b", "seq": 7,
    "ts": DAY, "device": "GPU=1, x", "type": "xid", "code": 79, "message": 'say "x"\\',
}  # fmt: skip
RISK = {
    "schema": "rigcanary.risks/1", "site": "lab", "node": "r1", "minute": DAY,
    "model_version": "v1",
    "devices": [
        {"device": "a", "risk_15m": 0, "risk_60m": 0.2, "risk_240m": None, "health_score": 80},
        {"device": "b", "completeness": 0.2, "risk_60m": None},
    ],
}  # fmt: skip


async def test_points_arrive_as_floats_without_gaps_filled(influx):
    sink = history(influx)
    await sink.start()
    sink.minutes(minute("r1", DAY, temperature_celsius_mean=50, power_watts_mean=None))
    sink.minutes(minute("r1", DAY + 60, temperature_celsius_mean=float("nan")))
    sink.minutes({**minute("r1", DAY), "devices": [{"device": "empty"}]})
    sink.risk(RISK)
    sink.decision(DECISION)
    sink.event(EVENT)
    sink.event({**EVENT, "seq": 8})  # the same instant and series: still two points
    await sink.stop()
    kinds = sorted(m for m, _, _ in influx.points)
    assert kinds == ["decision", "event", "event", "minute", "minute", "risk"]
    first = influx.points["minute", r",device=GPU-1,node=r1,site=lab\ a", f"{DAY}000000000"]
    assert first == {"messages": "12.0", "interval_seconds": "5.0", "samples": "12.0",
                     "temperature_celsius_mean": "50.0"}  # fmt: skip
    (risk,) = (f for (m, _, _), f in influx.points.items() if m == "risk")
    assert risk == {"risk_15m": "0.0", "risk_60m": "0.2", "health_score": "80.0",
                    "model_version": '"v1"'}  # fmt: skip
    (decision,) = (t for m, t, _ in influx.points if m == "decision")
    assert decision == ",node=r1,site=lab"
    assert sink.counts[("minutes", "written")] == 2
    assert set(influx.requests) == {204}


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_it_tries_again_when_the_server_cannot_now(influx, status):
    influx.script = [(status, {"Retry-After": "0"}), (status, {}), (status, {})]
    sink = history(influx)
    await sink.start()
    for m in range(50):
        sink.minutes(minute("r1", DAY + 60 * m))
    await sink.stop()
    assert len(influx.points) == 50
    assert sink.counts == {("minutes", "written"): 50}


async def test_a_refused_point_loses_no_other(influx, tmp_path):
    influx.types = {("minute", "fan_speed_rpm_mean"): "string"}  # somebody wrote it as text
    spool = tmp_path / "spool.lp"
    sink = history(influx, spool=spool)
    await sink.start()
    for m in range(40):
        more = {"fan_speed_rpm_mean": 1000.0} if m in (3, 17) else {}
        sink.minutes(minute("r1", DAY + 60 * m, **more))
    await sink.stop()
    assert len(influx.points) == 38
    assert sink.counts == {("minutes", "written"): 38, ("minutes", "failed"): 2}
    spooled = spool.read_text().splitlines()
    assert len(spooled) == 2
    assert all("fan_speed_rpm_mean=1000.0" in line for line in spooled)


async def test_a_server_that_stays_away_is_given_up_in_bounded_time(influx, tmp_path):
    influx.script = [(503, {})] * 10_000
    spool = tmp_path / "spool.lp"
    sink = history(influx, spool=spool, retry_seconds=0.05)
    await sink.start()
    sink.minutes(minute("r1", DAY))
    await sink.stop()
    assert sink.counts == {("minutes", "failed"): 1}
    assert len(spool.read_text().splitlines()) == 1


async def test_no_server_at_all(tmp_path, free_port, caplog):
    spool = tmp_path / "spool.lp"
    sink = InfluxHistory(
        f"http://127.0.0.1:{free_port()}", "o", "b", SecretStr("secret"), spool=spool,
        retry_seconds=0.1,
    )  # fmt: skip
    await sink.start()
    for m in range(3):
        sink.minutes(minute("r1", DAY + 60 * m))
    await sink.stop()
    assert len(spool.read_text().splitlines()) == 3
    assert "secret" not in caplog.text
    assert sum("trying again" in r.getMessage() for r in caplog.records) == 1


async def test_unusable_values_are_counted(influx):
    sink = history(influx)
    await sink.start()
    sink.minutes({})
    sink.event({**EVENT, "ts": "now"})
    sink.decision({"data": None})
    sink.minutes(minute("r1", DAY))
    await sink.stop()
    assert len(influx.points) == 1
    assert sum(n for (_, outcome), n in sink.counts.items() if outcome == "failed") == 3


def test_a_url_that_is_none():
    with pytest.raises(ConfigError, match=r"influx\.url"):
        InfluxHistory("influx:8086", "o", "b", SecretStr("t"))


text = st.text(max_size=20)
number = st.one_of(st.none(), st.floats(), st.integers(-(2**60), 2**60))


@settings(max_examples=30, deadline=None)
@given(
    text, text, st.text(min_size=1, max_size=20), st.dictionaries(st.sampled_from(COLUMNS), number)
)
def test_any_minute_row_is_line_protocol_of_floats(site, node, device, columns):
    value = minute("r", DAY)
    value |= {"site": site, "node": node, "devices": [{"device": device, **columns}]}
    for line in LINES["minutes"](value):
        fields = Influx.parse(_Bare(), line, "ns")  # type: ignore[arg-type]
        (point,) = fields.values()
        assert {type_of(v) for v in point.values()} == {"float"}


@settings(max_examples=30, deadline=None)
@given(text, text, text)
def test_any_event_is_line_protocol(device, message, boot_id):
    value = {**EVENT, "device": device, "message": message, "boot_id": boot_id}
    (line,) = LINES["events"](value)
    assert Influx.parse(_Bare(), line, "ns")  # type: ignore[arg-type]


class _Bare:
    types: dict = {}  # noqa: RUF012 - replaced, never changed
