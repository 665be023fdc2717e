"""The same webhook in the shapes that other programs already understand.

A webhook waits in its Standard Webhooks form; it is put into the receiver's shape at each attempt.
The same id and body give the same bytes, so that a repetition is recognised by them too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import orjson

from contract.times import rfc3339
from contract.webhook_formats import CLOUDEVENTS_TYPE_PREFIX, ENDS, WebhookFormat, severity

ALERT_DAYS: Final = 30
"""An alert that nobody resolves ends by itself after so long. Alertmanager would end it after five
minutes, since it expects its clients to say everything again every minute."""
MAX_SLACK_CHARACTERS: Final = 3_000  # a text block's limit at Slack
_JSON: Final = "application/json"

_ALERT_OF: Final = {
    "migration.requested": "RigcanaryDeviceUnhealthy",
    "migration.withdrawn": "RigcanaryDeviceUnhealthy",
    "device.quarantined": "RigcanaryDeviceUnhealthy",
    "device.released": "RigcanaryDeviceUnhealthy",
    "breaker.opened": "RigcanaryBreakerOpen",
    "breaker.closed": "RigcanaryBreakerOpen",
}
_ALERT_SEVERITY: Final = {
    "RigcanaryDeviceUnhealthy": "warning",
    "RigcanaryBreakerOpen": "critical",
}


@dataclass(frozen=True, slots=True)
class Payload:
    """What one request carries: ``headers`` beside those that sign it."""

    content_type: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


def payload(webhook_format: WebhookFormat, webhook_id: str, body: bytes) -> Payload:
    """A webhook's Standard Webhooks ``body`` in another format.

    Raises:
        ValueError: when the body is not of that form.
    """
    if webhook_format == "standard":
        return Payload(_JSON, body)
    whole = orjson.loads(body)
    kind, data = str(whole["type"]), dict(whole["data"])
    if webhook_format == "alertmanager":
        return Payload(_JSON, orjson.dumps(_alerts(kind, str(whole["timestamp"]), data)))
    if webhook_format == "slack":
        return Payload(_JSON, orjson.dumps({"text": _text(kind, data)}))
    attributes = {
        "specversion": "1.0",
        "id": webhook_id,
        "source": _source(data),
        "type": CLOUDEVENTS_TYPE_PREFIX + kind,
        "time": str(whole["timestamp"]),
    }
    if data.get("device"):
        attributes["subject"] = str(data["device"])
    if webhook_format == "cloudevents":
        event = {**attributes, "datacontenttype": _JSON, "data": data}
        return Payload("application/cloudevents+json", orjson.dumps(event))
    # CloudEvents' HTTP binding: what is not printable ASCII, space, '"' and '%' are escaped.
    safe = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')
    headers = {f"ce-{name}": quote(value, safe=safe) for name, value in attributes.items()}
    return Payload(_JSON, orjson.dumps(data), headers)


def _source(data: Mapping[str, Any]) -> str:
    return "/".join(["/rigcanary", *(str(data[k]) for k in ("site", "node") if data.get(k))])


# -- Alertmanager --------------------------------------------------------------------------------


def _alerts(kind: str, timestamp: str, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body of ``POST /api/v2/alerts``; empty, which it accepts, for ``test.ping``."""
    if kind not in _ALERT_OF:
        return []
    # An alert is found again by all of its labels: none may depend on what only its beginning or
    # only its end knows. The severity is therefore that of the kind: a card is seen to by itself,
    # an open breaker waits for a person.
    name = _ALERT_OF[kind]
    labels = {"alertname": name, "severity": _ALERT_SEVERITY[name]}
    for key in ("site", "node", "device"):
        if data.get(key):
            labels[key] = str(data[key])
    annotations = {"summary": _summary(kind, data)}
    for key in ("episode_id", "decision_id", "cause", "rule", "risk", "health_score", "reason"):
        if data.get(key) is not None:
            annotations[key] = str(data[key])
    alert: dict[str, Any] = {"labels": labels, "annotations": annotations}
    if kind in ENDS:
        return [{**alert, "endsAt": timestamp}]
    return [{**alert, "startsAt": timestamp, "endsAt": _later(timestamp, ALERT_DAYS)}]


def _later(timestamp: str, days: int) -> str:
    end = datetime.fromisoformat(timestamp) + timedelta(days=days)
    return rfc3339(round(end.timestamp() * 1000))


# -- words ---------------------------------------------------------------------------------------


def _what(data: Mapping[str, Any]) -> str:
    node = f"{data.get('site')}/{data.get('node')}"
    return f"card {data['device']} in {node}" if data.get("device") else f"node {node}"


def _summary(kind: str, data: Mapping[str, Any]) -> str:
    """One line for a person."""
    cause = data.get("rule") or data.get("cause")
    why = f" ({cause})" if cause else ""
    reason = f": {data['reason']}" if data.get("reason") else ""
    match kind:
        case "migration.requested":
            return f"Move jobs off {_what(data)}{why}, health {data.get('health_score')} of 100"
        case "migration.withdrawn":
            return f"Jobs need not leave {_what(data)} any more{reason}"
        case "device.quarantined":
            return f"Quarantined: {_what(data)}{why}{reason}"
        case "device.released":
            return f"Released: {_what(data)}{reason}"
        case "breaker.opened":
            return f"Nothing more is moved by itself at site {data.get('site')}{reason}"
        case "breaker.closed":
            return f"Moves are made again at site {data.get('site')}{reason}"
        case "test.ping":
            return "rigcanary can reach this receiver (test.ping)"
    return f"{kind}{reason}"


_MARKS: Final = {"critical": ":red_circle:", "warning": ":large_orange_circle:"}


def _text(kind: str, data: Mapping[str, Any]) -> str:
    """Slack's incoming-webhook text; Mattermost, Rocket.Chat and Discord (/slack) take it too."""
    mark = ":large_green_circle:" if kind in ENDS else _MARKS.get(severity(kind, data), "")
    lines = [f"{mark} {_summary(kind, data)}".strip()]
    for item in (data.get("evidence") or [])[:3]:
        lines.append(f"• {item.get('sensor')} {item.get('value')} (usually {item.get('baseline')})")
    if data.get("episode_id"):
        lines.append(f"episode {data['episode_id']}, decided {data.get('decided_at')}")
    text = "\n".join(lines)
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(plain, escaped)
    return text[:MAX_SLACK_CHARACTERS]
