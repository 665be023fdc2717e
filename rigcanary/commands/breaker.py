"""``rigcanary breaker``."""

import typer

from rigcanary.commands import _command

app = typer.Typer(add_completion=False)


@app.command()
def main(
    site: str = typer.Argument(..., metavar="SITE", help="The site whose breaker to close."),
    reason: str = typer.Option(..., "--reason", help="Why; it is in breaker.closed."),
    by: str | None = typer.Option(None, "--by", help="Who; the login name by default."),
    kafka: str = typer.Option(_command.KAFKA, help="Kafka bootstrap servers."),
    web: str = typer.Option(_command.WEB, help="Page of the worker, for its answer."),
) -> None:
    """Close a site's circuit breaker: what waits moves again, as far as the budget allows.

    Example: rigcanary breaker lab --reason "the air conditioning runs again" --by mei
    """
    command = {
        "command": "breaker.close",
        "site": site,
        "reason": reason,
        "by": _command.who(by),
    }
    print(_command.send(kafka, web, command, every_partition=True))
