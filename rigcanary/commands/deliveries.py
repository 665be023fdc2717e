"""``rigcanary deliveries``."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import orjson
import typer

from contract.errors import ConfigError, RigcanaryError

if TYPE_CHECKING:
    from stream.deliveries import DeadLetters, Stored

app = typer.Typer(add_completion=False, no_args_is_help=True)

KAFKA = typer.Option("127.0.0.1:9092", "--kafka", metavar="HOST:PORT", help="Kafka's address.")
RECEIVER = typer.Option(None, "--receiver", metavar="NAME", help="Of this receiver only.")


@app.callback()
def _root() -> None:
    """Webhooks that could not be delivered: look at them, send them again.

    Example: rigcanary deliveries list --kafka 127.0.0.1:9092
    """


def _check_kafka(kafka: str) -> None:
    from stream.bridge_settings import split_address

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # said in one line instead
    try:
        for address in kafka.split(","):
            split_address(address.strip())
    except ValueError as error:
        raise ConfigError(f"--kafka {error}") from error


def _shown(stored: "Stored") -> dict[str, Any]:
    return {key: value for key, value in stored.value.items() if key != "body"}


async def _letters(kafka: str) -> "DeadLetters":
    from contract.topics import DELIVERIES
    from stream.deliveries import DeadLetters, read_record
    from stream.edge.kafka_read import read_records, servers

    letters = DeadLetters()
    async for record in read_records(servers(kafka), DELIVERIES):
        stored = read_record(record.partition, record.key, record.value)
        if stored is not None:
            letters.take(stored)
    return letters


@app.command("list")
def list_dead(
    kafka: str = KAFKA,
    receiver: str | None = RECEIVER,
    limit: int = typer.Option(100, "--limit", min=1, max=10_000, help="The newest so many."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line."),
) -> None:
    """List what was given up, or is being tried again, oldest first.

    Example: rigcanary deliveries list --receiver runner --json
    """
    _check_kafka(kafka)
    letters = asyncio.run(_letters(kafka))
    dead = letters.dead(receiver)
    for stored in dead[-limit:]:
        v = stored.value
        if as_json:
            print(orjson.dumps(_shown(stored)).decode())
            continue
        subject = "/".join(str(v[k]) for k in ("site", "node", "device") if v.get(k))
        state = "waits to be sent again" if v["status"] == "retry" else v.get("error")
        print(f"{v['webhook-id']}  {v['receiver']}  {v['type']}  {subject}  {v.get('timestamp')}")
        print(f"    after {v.get('attempt')} attempts: {state}")
    if not as_json:
        more = f", the newest {limit} are shown" if len(dead) > limit else ""
        print(f"{len(dead)} dead deliveries{more}")
    if letters.forgotten:
        typer.echo(f"{letters.forgotten} older ones are not shown", err=True)


@app.command()
def retry(
    ids: list[str] = typer.Argument(None, metavar="[ID…]", help="webhook-ids, as list shows them."),
    everything: bool = typer.Option(False, "--all", help="All that are dead."),
    kafka: str = KAFKA,
    receiver: str | None = RECEIVER,
    force: bool = typer.Option(
        False, "--force", help="Also what something later about the same device has overtaken."
    ),
) -> None:
    """Have the worker send dead deliveries once more, under their old ids.

    Example: rigcanary deliveries retry --all --receiver runner
    """
    _check_kafka(kafka)
    if bool(ids) == everything:
        raise ConfigError("deliveries retry needs the IDs, or --all, and not both")
    asked, refused = asyncio.run(_retry(kafka, set(ids or ()), receiver, force=force))
    for line in refused:
        typer.echo(line, err=True)
    print(f"{asked} deliveries are sent again by the worker; `rigcanary deliveries list` follows")
    if refused:
        raise typer.Exit(1)


async def _retry(
    kafka: str, ids: set[str], receiver: str | None, *, force: bool
) -> tuple[int, list[str]]:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    from contract.topics import DELIVERIES
    from stream.deliveries import as_retry, check_body

    letters = await _letters(kafka)
    dead = [s for s in letters.dead(receiver) if not ids or s.value["webhook-id"] in ids]
    found = {s.value["webhook-id"] for s in dead}
    refused = [f"{i}: no such dead delivery" for i in sorted(ids - found)]
    chosen = []
    for stored in dead:
        later, unfit = letters.overtaken_by(stored), check_body(stored)
        name = f"{stored.value['webhook-id']} to {stored.value['receiver']}"
        if stored.value["status"] == "retry":
            continue  # asked for already
        if unfit is not None:
            refused.append(f"{name}: {unfit}")
        elif later is not None and not force:
            refused.append(
                f"{name}: {later} of the same device was delivered since; --force sends it all "
                "the same"
            )
        else:
            chosen.append(stored)
    if not chosen:
        return 0, refused
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all", max_batch_size=1)
    try:
        await producer.start()
        for stored in chosen:
            await producer.send_and_wait(
                DELIVERIES,
                as_retry(stored),
                key=stored.node_key.encode(),
                partition=stored.partition,
            )
    except (KafkaError, OSError) as error:
        raise RigcanaryError(f"--kafka {kafka}: {error}") from error
    finally:
        await producer.stop()
    return len(chosen), refused


@app.command()
def schema(
    webhook_format: str = typer.Argument("standard", metavar="[FORMAT]", help="Payload's format."),
) -> None:
    """Print the JSON Schema of the request body that a receiver gets.

    Example: rigcanary deliveries schema cloudevents
    """
    from contract.webhook_formats import WEBHOOK_FORMATS, webhook_schema

    for known in WEBHOOK_FORMATS:
        if known == webhook_format:
            print(orjson.dumps(webhook_schema(known), option=orjson.OPT_INDENT_2).decode())
            return
    raise ConfigError(f"FORMAT {webhook_format!r} is not known; {', '.join(WEBHOOK_FORMATS)} are")
