"""MQTT and Kafka topic names, and how a node's identity is spelt (contracts sections 2, 3)."""

import re
from typing import Final, Literal, NamedTuple

from contract.errors import UnusableMessage

MQTT_ROOT: Final = "rigcanary/v1"
MqttKind = Literal["telemetry", "events", "status"]
MQTT_KINDS: Final[tuple[MqttKind, ...]] = ("telemetry", "events", "status")

TELEMETRY: Final = "rigcanary.telemetry"
EVENTS: Final = "rigcanary.events"
MINUTES: Final = "rigcanary.minutes"
RISKS: Final = "rigcanary.risks"
DECISIONS: Final = "rigcanary.decisions"
DELIVERIES: Final = "rigcanary.deliveries"
DEAD_LETTER: Final = "rigcanary.dead-letter"
RESENT: Final = "rigcanary.dead-letter-resent"
"""Which dead letters were sent again: ``{"partition", "offset", "topic", "resent_at"}``, by the
place of the letter in ``rigcanary.dead-letter``."""
COMMANDS: Final = "rigcanary.commands"
"""What people tell the worker: ``rigcanary quarantine``, ``release``, ``retire``, ``silence``."""
KAFKA_TOPICS: Final = (
    TELEMETRY,
    EVENTS,
    MINUTES,
    RISKS,
    DECISIONS,
    DELIVERIES,
    DEAD_LETTER,
    COMMANDS,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class MqttTopic(NamedTuple):
    """The parts of one of our MQTT topics."""

    site: str
    node: str
    kind: MqttKind

    def __str__(self) -> str:
        return f"{MQTT_ROOT}/{self.site}/{self.node}/{self.kind}"


def is_name(value: object) -> bool:
    """Whether ``value`` may be a site's or node's name: 1–64 of ``A–Z a–z 0–9 . _ -``."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def parse_mqtt_topic(topic: str) -> MqttTopic:
    """Split ``rigcanary/v1/{site}/{node}/{kind}``.

    Raises:
        UnusableMessage: with reason ``topic`` when it is not one of ours.
    """
    parts = topic.split("/")
    ours = len(parts) == 5 and topic.startswith(f"{MQTT_ROOT}/")
    if ours and is_name(parts[2]) and is_name(parts[3]):
        for kind in MQTT_KINDS:
            if parts[4] == kind:
                return MqttTopic(parts[2], parts[3], kind)
    raise UnusableMessage("topic", f"{topic!r} is not {MQTT_ROOT}/SITE/NODE/KIND")


def node_key(site: str, node: str) -> str:
    """A node's identity, which is also its Kafka key."""
    return f"{site}/{node}"
