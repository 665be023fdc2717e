"""``rigcanary runner``."""

from pathlib import Path
from typing import Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    port: int | None = typer.Option(None, "--port", help="TCP port; 0 takes a free one."),
    state: Path | None = typer.Option(
        None, "--state", help="Folder for database, secrets, jobs and checkpoints."
    ),
    host: str | None = typer.Option(None, "--host", help="Address to listen on."),
    node: list[str] = typer.Option(
        [], "--node", metavar="NAME[=CARD,CARD…]", help="A node where jobs may run; repeatable."
    ),
    config: Path | None = typer.Option(None, "--config", help="TOML file."),
    show_config: bool = typer.Option(False, "--show-config", help="Print what is in force."),
) -> int:
    """Run training jobs and move them off failing cards.

    Example: rigcanary runner --port 8400 --state ./runner-state --node rig001 --node rig002
    """
    from rigcanary.config import load, show
    from runner.settings import RunnerSettings

    overrides: dict[str, Any] = {
        "port": port,
        "state_dir": state,
        "host": host,
        "nodes": [_node(text) for text in node] or None,
    }
    settings = load(RunnerSettings, process="runner", config_file=config, overrides=overrides)
    if show_config:
        print(show(settings))
        return 0
    from runner.edge.server import serve

    return serve(settings)


def _node(text: str) -> dict[str, Any]:
    name, _, cards = text.partition("=")
    return {"name": name, "devices": [card for card in cards.split(",") if card]}
