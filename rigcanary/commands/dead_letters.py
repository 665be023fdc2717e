"""``rigcanary dead-letters list`` and ``resend``."""

import asyncio
import logging
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""List unusable messages, and send chosen ones again.

    Example: rigcanary dead-letters list --kafka 127.0.0.1:9092 --reason schema
    """,
)

Words = list[str] | None
Kafka = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT[,…]", help="Kafka bootstrap servers.")
]
Config = Annotated[
    Path | None, typer.Option("--config", help="The bridge's settings (TOML): logins, TLS.")
]
Reasons = Annotated[Words, typer.Option("--reason", help="Only these reasons; may be repeated.")]
Topics = Annotated[Words, typer.Option("--topic", help="Only of these MQTT or Kafka topics.")]
Nodes = Annotated[Words, typer.Option("--node", metavar="[SITE/]NODE", help="Only of these nodes.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Received then or later.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Received before that.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_letters(
    kafka: Kafka = None,
    reason: Reasons = None,
    topic: Topics = None,
    node: Nodes = None,
    since: Since = None,
    until: Until = None,
    count: Annotated[bool, typer.Option("--count", help="Only count them.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Show the newest this many.")] = 20,
    payload: Annotated[bool, typer.Option("--payload", help="Show their bytes too.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List dead letters: counts by reason, topic and node, and the newest ones.

    With --json one object: counts, and the newest letters. Their ids are what resend takes.

    Example: rigcanary dead-letters list --reason late --node lab/rig001 --json
    """
    import orjson

    from stream.edge.dead_letters import Counts, DeadLetters

    letters = DeadLetters(_settings(kafka, None, None, config))
    chosen = _choice(reason, topic, node, since, until, None)
    counts, newest = Counts(), deque[tuple[Any, bool]](maxlen=limit)

    async def read() -> None:
        marks = await letters.marks()
        async for letter in letters.read(chosen):
            resent = marks.has(letter)
            counts.add(letter, resent=resent)
            if not count:
                newest.append((letter, resent))
        counts.unreadable = letters.unreadable

    asyncio.run(read())
    shown = sorted(newest, key=lambda item: (item[0].received_ms, item[0].place))
    if as_json:
        found = [
            letter.summary(resent=resent)
            | ({"payload": letter.payload.decode("utf-8", "replace")} if payload else {})
            for letter, resent in shown
        ]
        print(orjson.dumps({**_counted(counts), "newest": found}).decode())
        return
    _print_counts(counts)
    for letter, resent in shown:
        _print_letter(letter.summary(resent=resent))
        if payload:
            print("   ", _plain(letter.payload[:2_000].decode("utf-8", "replace")))


@app.command("resend")
def resend_letters(
    ids: Annotated[
        Words, typer.Argument(metavar="[PARTITION:OFFSET]…", help="Ids as list shows them.")
    ] = None,
    kafka: Kafka = None,
    mqtt: Annotated[
        str | None,
        typer.Option("--mqtt", metavar="HOST:PORT", help="Broker of letters that came by MQTT."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="kafka, or embedded (for Tansu).")
    ] = None,
    reason: Reasons = None,
    topic: Topics = None,
    node: Nodes = None,
    since: Since = None,
    until: Until = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were not sent yet.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Those sent before too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Send at most this many.")] = 10_000,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Send dead letters again to the MQTT or Kafka topic they came from, each once.

    Do it after the cause is gone: what is still unusable becomes a new dead letter.

    Example: rigcanary dead-letters resend --reason schema --since 2026-01-01T00:00:00Z
    """
    import orjson

    from contract.errors import ConfigError
    from stream.edge.dead_letters import DeadLetters

    chosen = _choice(reason, topic, node, since, until, ids)
    if chosen.everything and not everything:
        raise ConfigError("resend needs ids, a choice such as --reason schema, or --all")
    letters = DeadLetters(_settings(kafka, mqtt, profile, config))
    result = asyncio.run(letters.resend(chosen, limit=limit, again=again))
    if as_json:
        print(orjson.dumps(result.summary()).decode())
        return
    print(f"{result.sent} sent again, {result.sent_before} had been sent before")
    if result.not_whole:
        print(f"{result.not_whole} left out: not all of their bytes were kept")
    if result.left:
        print(f"{result.left} more were meant; run the same command again")


def _settings(kafka: str | None, mqtt: str | None, profile: str | None, config: Path | None) -> Any:
    from rigcanary.config import load
    from stream.bridge_settings import BridgeSettings

    for name in ("aiokafka", "paho"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # said in one line instead
    overrides = {"kafka": kafka, "mqtt": mqtt, "profile": profile}
    return load(BridgeSettings, process="bridge", config_file=config, overrides=overrides)


def _choice(
    reason: Words, topic: Words, node: Words, since: str | None, until: str | None, ids: Words
) -> Any:
    from contract.deadletter import REASONS
    from contract.errors import ConfigError
    from stream.dead_letters import Choice
    from stream.edge.labels import parse_time

    for name in reason or ():
        if name not in REASONS:
            raise ConfigError(f"--reason {name!r} is none; there are: {', '.join(REASONS)}")
    for place in ids or ():
        partition, colon, offset = place.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise ConfigError(f"{place!r} is no id of a dead letter; list shows them, such as 3:17")
    return Choice(
        reasons=frozenset(reason or ()),
        topics=frozenset(topic or ()),
        nodes=frozenset(node or ()),
        places=frozenset(ids or ()),
        since_ms=parse_time(since) if since is not None else None,
        until_ms=parse_time(until) if until is not None else None,
    )


def _counted(counts: Any) -> dict[str, Any]:
    return {
        "letters": counts.letters,
        "resent": counts.resent,
        "unreadable": counts.unreadable,
        "by_reason": dict(counts.by_reason.most_common()),
        "by_topic": dict(counts.by_topic.most_common()),
        "by_node": dict(counts.by_node.most_common()),
    }


def _print_counts(counts: Any) -> None:
    print(f"{counts.letters} dead letters, {counts.resent} of them sent again")
    if counts.unreadable:
        print(f"{counts.unreadable} records of the topic are no dead letters")
    for title, counter in (
        ("reason", counts.by_reason), ("topic", counts.by_topic), ("node", counts.by_node),
    ):  # fmt: skip
        for name, number in counter.most_common(10):
            print(f"  {title:6}  {number:8}  {_plain(name)}")


def _print_letter(shown: dict[str, Any]) -> None:
    mark = "  (sent again)" if shown["resent"] else ""
    print(
        f"{shown['id']:>10}  {shown['received_at']}  {shown['reason']:17}  "
        f"{_plain(shown['node'] or '-'):24}  {shown['bytes']:7} B  {_plain(shown['detail'])}{mark}"
    )


def _plain(text: str) -> str:
    """Nothing that a stranger sent may steer the terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)
