"""Kafka → InfluxDB: a real Kafka, and a strict stand-in for InfluxDB 2 (its write interface).

The write path runs against VictoriaMetrics too, where Debian's is installed.
"""

import asyncio
import base64
import gzip
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_worker import create_topics, read_all

from contract.errors import ConfigError, RigcanaryError
from contract.minute import COLUMNS
from contract.topics import DEAD_LETTER, DECISIONS, EVENTS, MINUTES, RISKS
from rigcanary.config import load, show
from stream.dead_letters import parse
from stream.edge import influx_sink
from stream.edge.influx_sink import InfluxSink
from stream.edge.line_protocol import LINES
from stream.influx_settings import InfluxSinkSettings
from stream.settings import WorkerSettings

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
    monkeypatch.setattr(influx_sink, "backoff_seconds", lambda attempt, rng: 0.01)


class Setting:
    """A Kafka with our topics, and a sink at it."""

    def __init__(self, kafka: str, url: str) -> None:
        self.kafka = kafka
        self.settings = InfluxSinkSettings(
            kafka=kafka, profile="embedded", influx={"url": url, "token": "secret"}
        )
        self.sink = InfluxSink(self.settings)

    async def put(self, topic: str, *values: object) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka, max_batch_size=1, acks="all")
        await producer.start()
        for value in values:
            raw = value if isinstance(value, bytes) else orjson.dumps(value)
            await producer.send_and_wait(topic, raw, partition=0)
        await producer.stop()

    async def until(self, reached: Callable[[], bool], seconds: float = 60) -> None:
        """Run the sink until ``reached``, then a moment longer, and stop it."""
        running = asyncio.create_task(self.sink.run())
        deadline = time.monotonic() + seconds
        while not reached():
            if running.done():
                await running  # raises what ended it
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.7)
        self.sink.stop()
        await running

    def count(self, table: str, outcome: str) -> float:
        return self.sink.metrics.points.labels(table, outcome)._value.get()


@pytest.fixture
async def setting(own_kafka, influx):
    await create_topics(own_kafka.address)
    return Setting(own_kafka.address, influx.url)


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


async def test_points_arrive_as_floats_without_gaps_filled(setting, influx):
    await setting.put(
        MINUTES,
        minute("r1", DAY, temperature_celsius_mean=50, power_watts_mean=None),
        minute("r1", DAY + 60, temperature_celsius_mean=None),
        {**minute("r1", DAY), "devices": [{"device": "empty"}]},
    )
    await setting.put(RISKS, RISK)
    await setting.put(DECISIONS, DECISION)
    # The same instant and series: still two points.
    await setting.put(EVENTS, EVENT, {**EVENT, "seq": 8})
    await setting.until(lambda: len(influx.points) == 6)
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
    assert setting.count("minutes", "written") == 2
    assert set(influx.requests) == {204}


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_it_tries_again_when_the_server_cannot_now(setting, influx, status):
    influx.script = [(status, {"Retry-After": "0"}), (status, {}), (status, {})]
    await setting.put(MINUTES, *(minute("r1", DAY + 60 * m) for m in range(20)))
    await setting.until(lambda: len(influx.points) == 20)
    assert setting.count("minutes", "written") == 20
    assert setting.sink.metrics.retries._value.get() == 3


async def test_a_refused_point_loses_no_other_and_becomes_a_dead_letter(setting, influx):
    influx.types = {("minute", "fan_speed_rpm_mean"): "string"}  # somebody wrote it as text
    more = {"fan_speed_rpm_mean": 1000.0}
    await setting.put(
        MINUTES,
        b"{",
        *(minute("r1", DAY + 60 * m, **(more if m in (3, 17) else {})) for m in range(40)),
        {"minute": 1},
    )
    await setting.until(lambda: len(influx.points) == 38)
    assert setting.count("minutes", "refused") == 2
    letters = await read_all(setting.kafka, DEAD_LETTER)
    assert sorted(x["reason"] for x in letters) == ["record", "record", "refused", "refused"]
    bodies = [base64.b64decode(x["payload_base64"]) for x in letters if x["reason"] == "refused"]
    assert all(b"fan_speed_rpm_mean=1000.0" in body for body in bodies)
    refused = [parse(0, 0, orjson.dumps(x)) for x in letters if x["reason"] == "refused"]
    assert not any(letter is None or letter.whole for letter in refused)  # never sent again


async def test_what_is_not_written_is_read_again_by_the_next_sink(setting, influx):
    influx.script = [(503, {})] * 10_000
    await setting.put(MINUTES, *(minute("r1", DAY + 60 * m) for m in range(10)))
    await setting.until(lambda: len(influx.requests) >= 3)
    assert not influx.points
    influx.script = []
    after = Setting(setting.kafka, influx.url)
    await after.until(lambda: len(influx.points) == 10)
    assert after.count("minutes", "written") == 10
    # All of it is committed: a third one has nothing to write.
    third = Setting(setting.kafka, influx.url)
    await setting.put(EVENTS, EVENT)
    await third.until(lambda: len(influx.points) == 11)
    assert third.count("minutes", "written") == 0


async def test_more_than_a_round_arrives_after_an_outage(setting, influx):
    """While it is away the sink looks at the topic to stay a member, and skips nothing."""
    influx.script = [(503, {})] * 5
    await setting.put(MINUTES, *(minute("r1", DAY + 60 * m) for m in range(450)))
    await setting.until(lambda: len(influx.points) == 450)
    assert setting.sink.metrics.retries._value.get() >= 5


async def test_nothing_listens_at_the_url(own_kafka, free_port, caplog):
    await create_topics(own_kafka.address)
    here = Setting(own_kafka.address, f"http://127.0.0.1:{free_port()}")
    await here.put(MINUTES, minute("r1", DAY))
    await here.until(lambda: here.sink.metrics.retries._value.get() >= 3)
    assert "secret" not in caplog.text
    assert sum("Kafka holds the points" in r.getMessage() for r in caplog.records) == 1


async def test_kafka_that_is_not_there_ends_it_with_one_line(free_port, monkeypatch):
    monkeypatch.setattr(influx_sink, "START_ATTEMPTS", 2)
    sink = Setting(f"127.0.0.1:{free_port()}", "http://127.0.0.1:1").sink
    with pytest.raises(RigcanaryError, match="Kafka 127"):
        await sink.run()


async def test_victoria_metrics_takes_the_points(own_kafka, free_port, tmp_path):
    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("victoria-metrics is not installed (apt-get install victoria-metrics)")
    port = free_port()
    server = subprocess.Popen(
        [program, f"-storageDataPath={tmp_path}", f"-httpListenAddr=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await create_topics(own_kafka.address)
        here = Setting(own_kafka.address, f"http://127.0.0.1:{port}")
        now = int(time.time()) // 60 * 60 - 600
        rows = (minute("r1", now + 60 * m, temperature_celsius_mean=50.5) for m in range(5))
        await here.put(MINUTES, *rows)
        await here.until(lambda: here.count("minutes", "written") == 5)
        match = "match[]=minute_temperature_celsius_mean"
        url = f"http://127.0.0.1:{port}/api/v1/export?{match}"
        found = b""
        for _ in range(100):
            found = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            if found:
                break
            await asyncio.sleep(0.2)
        assert orjson.loads(found.splitlines()[0])["values"] == [50.5] * 5
    finally:
        server.terminate()
        server.wait()


def test_settings_that_are_wrong(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="http://"):
        load(InfluxSinkSettings, process="influx-sink",
             overrides={"influx": {"url": "influx:8086", "token": "t"}})  # fmt: skip
    with pytest.raises(ConfigError, match="influx-sink"):
        load(WorkerSettings, process="worker", overrides={"influx": {"url": "http://x"}})
    token = tmp_path / "token"
    token.write_text("from-a-file\n")
    monkeypatch.setenv("RIGCANARY_INFLUX_SINK_INFLUX__TOKEN_FILE", str(token))
    found = load(InfluxSinkSettings, process="influx-sink")
    assert found.influx.token.get_secret_value() == "from-a-file"
    assert "from-a-file" not in show(found) + repr(found)


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
