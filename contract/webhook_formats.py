"""Shapes in which a webhook can be sent, how urgent it is, and the JSON Schema of each body."""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from contract.decision import CAUSES

WebhookFormat = Literal["standard", "cloudevents", "cloudevents-binary", "alertmanager", "slack"]
WEBHOOK_FORMATS: Final[tuple[WebhookFormat, ...]] = get_args(WebhookFormat)

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""From the mildest to the gravest."""

ENDS: Final = ("migration.withdrawn", "device.released", "breaker.closed")
"""Types that end what another one began."""

CLOUDEVENTS_TYPE_PREFIX: Final = "rigcanary."
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def severity(webhook_type: str, data: Mapping[str, Any]) -> Severity:
    """How urgent a webhook is.

    What is broken now and the open breaker are ``critical``, a prediction or a quarantine
    ``warning``, ``test.ping`` ``info``. An end is as urgent as what it ends.
    """
    if webhook_type == "test.ping":
        return "info"
    if webhook_type.startswith("breaker."):
        return "critical"
    return "critical" if data.get("cause") in ("threshold", "lost", "node_lost") else "warning"


def webhook_schema(webhook_format: WebhookFormat) -> dict[str, Any]:
    """JSON Schema (2020-12) of the request body that a receiver of this format gets.

    Receivers must ignore keys that they do not know: new ones may be added.
    """
    makers = {
        "standard": _standard,
        "cloudevents": _cloudevents,
        "cloudevents-binary": _cloudevents_binary,
        "alertmanager": _alertmanager,
        "slack": _slack,
    }
    return {
        "$schema": DIALECT,
        "title": f"rigcanary webhook, format {webhook_format}",
        **makers[webhook_format](),
    }


_TIME: Final = {"type": "string", "format": "date-time", "description": "RFC 3339, UTC"}
_TEXT: Final = {"type": "string", "minLength": 1}
_DEVICE: Final = {"type": ["string", "null"], "description": "null: the whole node"}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Any:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }


def _data() -> dict[str, Any]:
    """Schema of ``data``, by webhook type."""
    card = {
        "site": _TEXT,
        "node": _TEXT,
        "device": _DEVICE,
        "decision_id": _TEXT,
        "decided_at": _TIME,
    }
    story = {
        "episode_id": _TEXT,
        "cause": {"enum": [*CAUSES, "manual"]},
        "reason": {"type": "string"},
        "by": {**_TEXT, "description": "the person who said so"},
        "state": {"type": "string", "description": "of the card from now on"},
        "quarantines": {"type": "integer", "minimum": 0, "description": "in the last 30 days"},
        "repeat_offender": {"type": "boolean"},
    }
    site = {"site": _TEXT, "decision_id": _TEXT, "decided_at": _TIME, "reason": _TEXT}
    number = {"type": ["number", "null"]}
    evidence = _object(
        {
            "sensor": _TEXT,
            "value": number,
            "baseline": number,
            "contribution": {"type": "number", "minimum": 0, "maximum": 1},
        }
    )
    requested = {
        **card,
        "episode_id": _TEXT,
        "cause": {"enum": list(CAUSES)},
        "risk": {"type": "number", "minimum": 0, "maximum": 1},
        "risk_horizon_seconds": {"type": "integer", "minimum": 1},
        "health_score": {
            "type": "number",
            "minimum": 0,
            "maximum": 100,
            "description": "under 60 is unhealthy",
        },
        "evidence": {"type": "array", "items": evidence},
        "observed_at": _TIME,
    }
    return {
        "migration.requested": _object(requested, {"reason": {"type": "string"}}),
        "migration.withdrawn": _object({**card, "episode_id": _TEXT}, story),
        "device.quarantined": _object(card, story),
        "device.released": _object(card, story),
        "breaker.opened": _object(site),
        "breaker.closed": _object(site),
        "test.ping": _object({"receiver": _TEXT}),
    }


def _by_type(prefix: str, envelope: Mapping[str, Any], optional: Mapping[str, Any]) -> Any:
    """One branch a webhook type: ``type`` says which ``data`` there is."""
    return {
        "oneOf": [
            _object({**envelope, "type": {"const": prefix + name}, "data": data}, optional)
            for name, data in _data().items()
        ]
    }


def _standard() -> Any:
    return _by_type("", {"timestamp": _TIME}, {})


def _cloudevents() -> Any:
    envelope = {
        "specversion": {"const": "1.0"},
        "id": {**_TEXT, "description": "the webhook-id"},
        "source": {"type": "string", "pattern": "^/rigcanary(/[^/]+){0,2}$"},
        "time": _TIME,
        "datacontenttype": {"const": "application/json"},
    }
    return _by_type(CLOUDEVENTS_TYPE_PREFIX, envelope, {"subject": _TEXT})


def _cloudevents_binary() -> Any:
    return {
        "anyOf": list(_data().values()),
        "description": "data alone; the attributes are in the ce- headers, ce-type says which",
    }


def _alertmanager() -> Any:
    text = {"type": "string"}
    label = {"type": "object", "additionalProperties": text}
    alert = _object(
        {
            "labels": {**label, "required": ["alertname", "site", "severity"]},
            "annotations": label,
        },
        {"startsAt": _TIME, "endsAt": _TIME},
    )
    return {"type": "array", "items": alert, "description": "empty: test.ping"}


def _slack() -> Any:
    return _object({"text": {"type": "string", "minLength": 1, "maxLength": 3000}})
