"""``rigcanary silence``."""

import time

import typer

from rigcanary.commands import _command

app = typer.Typer(add_completion=False)


@app.command()
def main(
    node: str = typer.Argument(..., metavar="SITE/NODE"),
    device: str = typer.Option("", "--device", help="One card; the whole node by default."),
    minutes: float = typer.Option(..., "--minutes", min=1, max=43_200, help="How long from now."),
    reason: str = typer.Option(..., "--reason", help="Why; it is kept with the card's story."),
    by: str | None = typer.Option(None, "--by", help="Who; the login name by default."),
    kafka: str = typer.Option(_command.KAFKA, help="Kafka bootstrap servers."),
    web: str = typer.Option(_command.WEB, help="Page of the worker, for its answer."),
) -> None:
    """Let signs of a node or card move nothing for a while, as during maintenance.

    Example: rigcanary silence lab/rig001 --minutes 90 --reason "new fans" --by mei
    """
    site, name = _command.split_node(node)
    command = {
        "command": "silence",
        "site": site,
        "node": name,
        "device": device,
        "reason": reason,
        "by": _command.who(by),
        "until": round(time.time() + 60 * minutes, 3),
    }
    print(_command.send(kafka, web, command))
