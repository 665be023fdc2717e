"""Every payload's shape, checked against its schema in bodies that really went over the wire."""

import asyncio
import base64
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from standardwebhooks import Webhook, WebhookVerificationError

from contract.webhook_formats import ENDS, WEBHOOK_FORMATS, severity, webhook_schema
from stream.edge.webhook import Deliverer, Outgoing, Schedule, body
from stream.edge.webhook_schedule import Pace
from stream.payloads import payload
from stream.receivers import WEBHOOK_TYPES, Receiver

OLD = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
NEW = "whsec_" + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode()
AT_MS = 1_767_225_600_000
CARD = {
    "site": "lab-a",
    "node": "rig001",
    "device": "GPU-1",
    "episode_id": "ep_1",
    "decision_id": "dec_1",
    "decided_at": "2026-01-01T00:00:00.000Z",
}
SITE = {k: CARD[k] for k in ("site", "decision_id", "decided_at")}
EVIDENCE = [{"sensor": "fan_speed_rpm", "value": 0.0, "baseline": None, "contribution": 0.9}]
DATA: dict[str, dict[str, Any]] = {
    "migration.requested": {
        **CARD,
        "cause": "threshold",
        "rule": "fan_stopped",
        "risk": 1.0,
        "risk_horizon_seconds": 14_400,
        "health_score": 0.0,
        "evidence": EVIDENCE,
        "observed_at": "2026-01-01T00:00:00.000Z",
    },
    "migration.withdrawn": {**CARD, "reason": "healthy again"},
    "device.quarantined": {**CARD, "cause": "predicted"},
    "device.released": {**CARD, "cause": "predicted", "reason": "no sign for 240 minutes"},
    "breaker.opened": {**SITE, "reason": "more than 2 moves asked for within 10 minutes"},
    "breaker.closed": {**SITE, "reason": "calm"},
    "test.ping": {"receiver": "x"},
}
VALIDATORS = {name: Draft202012Validator(webhook_schema(name)) for name in WEBHOOK_FORMATS}


def shaped(webhook_format, kind, **change):
    return payload(webhook_format, "msg_1", body(kind, AT_MS, {**DATA[kind], **change}))


@pytest.mark.parametrize("name", WEBHOOK_FORMATS)
def test_schemas_are_schemas_and_refuse_what_is_no_webhook(name):
    Draft202012Validator.check_schema(webhook_schema(name))
    for wrong in (None, 7, "x", [1], {"type": "migration.requested", "data": {}}):
        assert not VALIDATORS[name].is_valid(wrong)


@pytest.mark.parametrize("kind", WEBHOOK_TYPES)
@pytest.mark.parametrize("name", WEBHOOK_FORMATS)
def test_every_payload_fits_its_schema(name, kind):
    VALIDATORS[name].validate(orjson.loads(shaped(name, kind).body))


def test_the_examples_in_the_docs_fit_too():
    text = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    examples = re.findall(r"<!-- format: (\S+) -->\n```json\n(.*?)```", text, re.S)
    assert {name for name, _ in examples} == set(WEBHOOK_FORMATS) - {"cloudevents-binary"}
    for name, example in examples:
        VALIDATORS[name].validate(orjson.loads(example))


def test_a_missing_key_is_noticed():
    for key in ("risk", "episode_id", "cause"):
        data = {k: v for k, v in DATA["migration.requested"].items() if k != key}
        wrong = orjson.loads(body("migration.requested", AT_MS, data))
        assert not VALIDATORS["standard"].is_valid(wrong)


@pytest.mark.parametrize("kind", WEBHOOK_TYPES)
def test_cloudevents_say_the_same_in_both_modes(kind):
    event = orjson.loads(shaped("cloudevents", kind).body)
    assert shaped("cloudevents", kind).content_type == "application/cloudevents+json"
    binary = shaped("cloudevents-binary", kind)
    assert binary.content_type == "application/json"
    assert orjson.loads(binary.body) == event["data"] == DATA[kind]
    attributes = {k: v for k, v in event.items() if k not in ("data", "datacontenttype")}
    assert binary.headers == {f"ce-{k}": v for k, v in attributes.items()}
    assert event["type"] == f"rigcanary.{kind}"
    assert event["id"] == "msg_1"


def test_odd_device_names_fit_into_headers():
    headers = shaped("cloudevents-binary", "device.released", device='a "b"\r\nx: 1 é%').headers
    assert headers["ce-subject"] == "a%20%22b%22%0D%0Ax:%201%20%C3%A9%25"


def test_an_alert_begins_and_ends_under_the_same_labels():
    (firing,) = orjson.loads(shaped("alertmanager", "migration.requested").body)
    assert firing["labels"] == {
        "alertname": "RigcanaryDeviceUnhealthy",
        "site": "lab-a",
        "node": "rig001",
        "device": "GPU-1",
        "severity": "warning",
    }
    assert (firing["startsAt"], firing["endsAt"]) == (
        "2026-01-01T00:00:00.000Z",
        "2026-01-31T00:00:00.000Z",
    )
    for end in ("device.released", "migration.withdrawn"):
        for cause in ("predicted", "lost"):
            (resolved,) = orjson.loads(shaped("alertmanager", end, cause=cause).body)
            assert resolved["labels"] == firing["labels"]
            assert resolved["endsAt"] == "2026-01-01T00:00:00.000Z"
            assert "startsAt" not in resolved
    (opened,) = orjson.loads(shaped("alertmanager", "breaker.opened").body)
    (closed,) = orjson.loads(shaped("alertmanager", "breaker.closed").body)
    assert opened["labels"] == closed["labels"]
    node = orjson.loads(shaped("alertmanager", "device.released", device=None).body)[0]
    assert "device" not in node["labels"]
    assert shaped("alertmanager", "test.ping").body == b"[]"


def test_slack_text_cannot_be_given_mentions_or_links():
    text = orjson.loads(shaped("slack", "device.released", reason="<!channel> & <http://x|y>").body)
    assert "&lt;!channel&gt; &amp; &lt;http" in text["text"]
    assert "<" not in text["text"]


@given(st.sampled_from(WEBHOOK_TYPES), st.sampled_from(WEBHOOK_FORMATS), st.text(max_size=80))
def test_the_same_webhook_gives_the_same_bytes(kind, name, device):
    assert shaped(name, kind, device=device) == shaped(name, kind, device=device)


def test_severity():
    assert severity("migration.requested", {"cause": "predicted"}) == "warning"
    assert severity("migration.requested", {"cause": "node_lost"}) == "critical"
    assert severity("device.released", {"cause": "lost"}) == "critical"
    assert severity("breaker.closed", {}) == "critical"
    assert severity("test.ping", {}) == "info"
    assert set(ENDS) < set(WEBHOOK_TYPES)


@given(
    st.floats(0.1, 200),
    st.lists(st.floats(0, 2), min_size=2, max_size=200),
)
def test_no_second_sees_more_than_twice_its_share(per_second, gaps):
    # A second's worth may come at once, after that it is one an interval.
    pace, now, starts = Pace(per_second), 1_767_225_600.0, []
    for gap in gaps:
        now += gap
        starts.append(now + pace.wait(now))
    starts.sort()
    for i, start in enumerate(starts):
        burst = sum(1 for other in starts[i:] if other < start + 1 - 1e-6)
        assert burst <= 2 * max(1, int(per_second)) + 1


def test_a_clock_set_back_does_not_stop_the_pace():
    pace = Pace(1.0)
    pace.wait(2_000_000_000.0)
    assert pace.wait(1_000_000_000.0) == 0.0


async def received(receiver_settings, outgoing):
    """``(headers, body)`` of what one receiver gets."""
    got: asyncio.Queue = asyncio.Queue()

    async def handle(request):
        await got.put((dict(request.headers), await request.read()))
        return web.Response(status=200)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v2/alerts"
    receiver = Receiver.model_validate(
        {"name": "x", "url": url, "allow_private": True, **receiver_settings}
    )

    async def ignore(delivery):
        return None

    deliverer = Deliverer([receiver], ignore, rng=random.Random(1), schedule=Schedule())
    deliverer.submit(outgoing)
    try:
        return await asyncio.wait_for(got.get(), 20)
    finally:
        await deliverer.close()
        await runner.cleanup()


def outgoing(kind="migration.requested"):
    return Outgoing(
        "msg_1", kind, "lab-a", "lab-a/rig001/GPU-1", body(kind, AT_MS, DATA[kind]), "x"
    )


@pytest.mark.parametrize("name", WEBHOOK_FORMATS)
async def test_what_arrives_fits_the_schema_and_verifies(name):
    headers, raw = await received({"format": name, "secret": NEW}, outgoing())
    VALIDATORS[name].validate(Webhook(NEW).verify(raw, headers))
    if name == "cloudevents-binary":
        assert headers["ce-type"] == "rigcanary.migration.requested"


async def test_while_a_secret_is_replaced_both_verify():
    headers, raw = await received({"secret": f"{NEW} {OLD}"}, outgoing())
    assert len(headers["webhook-signature"].split()) == 2
    for secret in (NEW, OLD):
        assert Webhook(secret).verify(raw, headers)["type"] == "migration.requested"
    third = "whsec_" + base64.b64encode(b"another-another-another-another-").decode()
    with pytest.raises(WebhookVerificationError):
        Webhook(third).verify(raw, headers)


async def test_without_a_secret_nothing_is_signed():
    headers, _ = await received({"format": "alertmanager"}, outgoing())
    assert "webhook-signature" not in headers
    assert headers["webhook-id"] == "msg_1"


def test_the_library_signs_what_we_verify():
    # The other way round: what the official library signs, our runner's verifier takes.
    from pydantic import SecretStr

    from runner.edge.secrets import WebhookVerifier

    raw = body("migration.requested", AT_MS, DATA["migration.requested"])
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "msg_7",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(OLD).sign("msg_7", now, raw.decode()),
    }
    assert WebhookVerifier(SecretStr(f"{NEW} {OLD}")).verify(raw, headers) == "msg_7"
