"""``rigcanary export``."""

import asyncio
import logging
from pathlib import Path

import orjson
import typer

from contract.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command()
def main(
    out: Path = typer.Option(..., "--out", metavar="DATASET", help="Folder to write."),
    state: Path | None = typer.Option(
        None, "--state", metavar="DIR", help="State folder of a worker or of serve."
    ),
    kafka: str | None = typer.Option(
        None, "--kafka", metavar="HOST:PORT", help="Read the minute rows from Kafka instead."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Write recorded history as a fleet data set: minute rows, failures and moves.

    With --kafka, --state only gives the labels that ``rigcanary failure`` recorded.

    Example: rigcanary export --state ~/.local/state/rigcanary --out ./fleet
    """
    from stream.bridge_settings import split_address
    from stream.edge.export import export_kafka, export_state

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # said in one line instead
    if kafka is not None:
        try:
            for address in kafka.split(","):
                split_address(address.strip())
        except ValueError as error:
            raise ConfigError(f"--kafka {error}") from error
        result = asyncio.run(export_kafka(kafka, out, state))
    elif state is not None:
        result = export_state(state, out)
    else:
        raise ConfigError("export needs --state DIR or --kafka HOST:PORT")
    summary = result.summary()
    if as_json:
        print(orjson.dumps(summary).decode())
        return
    print(
        f"{result.minutes} minute rows of {result.devices} cards over {result.days} days, "
        f"{result.failures} failures and {result.moves} moves in {out}"
    )
