"""What a person tells the worker over ``rigcanary.commands``: quarantine, release and so on.

Every command names who and why; both are in the decision, in the episode, and in the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from contract.topics import is_name
from stream import decision_record as record
from stream import ending, lifecycle
from stream.decide import Decider
from stream.decision_record import Decision
from stream.state import Episode, NodeState

Kind = Literal["quarantine", "release", "retire", "silence", "breaker.close"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SCHEMA: Final = "rigcanary.command/1"
KEPT: Final = 32
MAX_SILENCES: Final = 16
MAX_SILENCE_MS: Final = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``device`` is empty for a silence of the whole node; a breaker has no node."""

    command_id: str
    kind: Kind
    site: str
    node: str
    device: str
    reason: str
    by: str
    at_ms: int
    until_ms: int = 0


def parse(value: Any) -> Command:
    """A command record.

    Raises:
        ValueError: with what is wrong.
    """
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise ValueError(f"the schema must be {SCHEMA}")
    if value.get("command") not in KINDS:
        raise ValueError(f"command must be one of {', '.join(KINDS)}")
    kind: Kind = value["command"]
    text = {}
    for key, least, most in (
        ("command_id", 8, 64),
        ("device", 0, 256),
        ("reason", 1, 256),
        ("by", 1, 64),
    ):
        word = value.get(key, "")
        if not isinstance(word, str) or not least <= len(word) <= most or not word.isprintable():
            raise ValueError(f"{key} must be text of {least} to {most} printable characters")
        text[key] = word
    site, node = value.get("site"), value.get("node", "")
    if not is_name(site) or not (is_name(node) or (kind == "breaker.close" and node == "")):
        raise ValueError("site and node must be names")
    if not text["device"] and kind not in ("silence", "breaker.close"):
        raise ValueError("device is missing")
    times = []
    for key in ("at", "until"):
        at = value.get(key, 0)
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 10**11:
            raise ValueError(f"{key} must be Unix seconds")
        times.append(round(at * 1000))
    if kind == "silence" and not times[0] < times[1] <= times[0] + MAX_SILENCE_MS:
        raise ValueError("until must be later than at, by 30 days at most")
    return Command(
        text["command_id"], kind, str(site), str(node), text["device"], text["reason"],
        text["by"], times[0], times[1],
    )  # fmt: skip


def apply(decider: Decider, state: NodeState, command: Command) -> tuple[list[Decision], str]:
    """Carry a command out on a node's state; returns decisions and the answer for the person.

    A command that came before changes nothing. What cannot be done is said in the answer.
    """
    if command.command_id in state.commands:
        return [], "done before"
    state.commands = [*state.commands, command.command_id][-KEPT:]
    at_ms = decider.waiting.now_ms(state.site) or command.at_ms
    if command.kind == "breaker.close":
        was_open = decider.gate.close(state.site, at_ms, f"{command.by}: {command.reason}")
        return decider.breaker(state), "closed" if was_open else "was not open"
    if command.kind == "silence":
        return [], _silence(state, command, at_ms)
    if command.device not in state.devices:
        names = ", ".join(sorted(state.devices)[:16]) or "none yet"
        return [], f"refused: {command.site}/{command.node} has no {command.device}; it has {names}"
    card = state.devices[command.device]
    target = {"quarantine": "quarantined", "release": "probation", "retire": "retired"}[
        command.kind
    ]
    allowed = lifecycle.MOVES[card.state].keys()  # type: ignore[index]
    vouched = command.kind == "release" and card.state in ("suspect", "probation")
    if target not in allowed and not vouched:
        return [], f"refused: {command.device} is {card.state}"
    episode = card.episode
    if episode is None:
        episode = Episode(
            record.identifier("ep", state.site, state.node, command.device, command.command_id),
            "manual",
            at_ms,
            at_ms,
            rule="manual",
        )
        card.episode = episode
    if "manual" not in episode.rules:
        episode.rules.insert(0, "manual")
    episode.note(at_ms, command.kind, by=command.by, reason=command.reason)
    decisions = _ACT[command.kind](decider, state, command, episode, at_ms)
    if command.kind == "release":
        card.history = ""  # a card that was repaired is another one; its baseline begins anew
    jobs = ", takes jobs again" if command.kind == "release" else ""
    return decisions, f"{command.device} is {card.state}{jobs}"


def _silence(state: NodeState, command: Command, at_ms: int) -> str:
    kept = [s for s in state.silences if s["until_ms"] > at_ms]
    state.silences = [
        *kept,
        {
            "from_ms": 0,
            "until_ms": command.until_ms,
            "device": command.device or "*",
            "reason": f"{command.by}: {command.reason}",
        },
    ][-MAX_SILENCES:]
    return "silenced"


def _why(command: Command) -> str:
    return f"{command.reason} ({command.by})"


def _quarantine(
    decider: Decider, state: NodeState, command: Command, episode: Episode, at_ms: int
) -> list[Decision]:
    decider.waiting.drop(state.site, (state.node, command.device))
    episode.waits = False
    if episode.migration != "requested":
        episode.migration = "manual"
    return [decider.quarantine(state, command.device, episode, at_ms, _why(command), by=command.by)]


def _release(
    decider: Decider, state: NodeState, command: Command, episode: Episode, at_ms: int
) -> list[Decision]:
    card = state.devices[command.device]
    decisions = []
    if episode.migration == "requested":
        decisions.append(
            record.about(
                "migration.withdrawn", state, command.device, episode, at_ms, _why(command),
                by=command.by,
            )
        )  # fmt: skip
    if card.state == "suspect" or (card.state == "probation" and episode.rules == ["manual"]):
        lifecycle.move(card, "healthy", at_ms)
    else:
        lifecycle.move(card, "probation", at_ms)
    card.raised, card.recent = False, []
    why = _why(command)
    released = ending.close(decider, state, command.device, episode, at_ms, why, by=command.by)
    return [*decisions, released, *decider.breaker(state)]


def _retire(
    decider: Decider, state: NodeState, command: Command, episode: Episode, at_ms: int
) -> list[Decision]:
    card = state.devices[command.device]
    decision = record.about(
        "device.quarantined", state, command.device, episode, at_ms, _why(command),
        part="retired", by=command.by, state="retired",
    )  # fmt: skip
    lifecycle.move(card, "retired", at_ms)
    decider.waiting.drop(state.site, (state.node, command.device))
    decider.gate.ended(state.site, state.node, command.device, at_ms)
    episode.waits = False
    if episode.migration != "requested":
        episode.migration = "manual"
    return [decision]


_ACT: Final = {"quarantine": _quarantine, "release": _release, "retire": _retire}
