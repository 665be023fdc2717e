"""``rigcanary quarantine``."""

import typer

from rigcanary.commands import _command

app = typer.Typer(add_completion=False)


@app.command()
def main(
    node: str = typer.Argument(..., metavar="SITE/NODE"),
    device: str = typer.Argument(..., metavar="DEVICE", help="The card's id, as in telemetry."),
    reason: str = typer.Option(..., "--reason", help="Why; it is kept with the card's story."),
    by: str | None = typer.Option(None, "--by", help="Who; the login name by default."),
    kafka: str = typer.Option(_command.KAFKA, help="Kafka bootstrap servers."),
    web: str = typer.Option(_command.WEB, help="Page of the worker, for its answer."),
) -> None:
    """Take a card out of service: no new jobs; what runs on it is not moved.

    Example: rigcanary quarantine lab/rig001 GPU-4f2a --reason "fan was changed" --by mei
    """
    site, name = _command.split_node(node)
    command = {
        "command": "quarantine",
        "site": site,
        "node": name,
        "device": device,
        "reason": reason,
        "by": _command.who(by),
    }
    print(_command.send(kafka, web, command))
