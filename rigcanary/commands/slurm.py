"""``rigcanary slurm``."""

from pathlib import Path
from typing import Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    port: int | None = typer.Option(None, "--port", help="TCP port; 0 takes a free one."),
    host: str | None = typer.Option(None, "--host", help="Address to listen on."),
    state: Path | None = typer.Option(None, "--state", help="Folder of the webhook secret."),
    site: str | None = typer.Option(None, "--site", help="Ignore decisions of other sites."),
    node: list[str] = typer.Option(
        [], "--node", metavar="NAME=SLURMNAME", help="A node that Slurm calls otherwise."
    ),
    requeue: bool | None = typer.Option(
        None, "--requeue/--no-requeue", help="Requeue jobs of a failing card's node, or drain only."
    ),
    config: Path | None = typer.Option(None, "--config", help="TOML file."),
    show_config: bool = typer.Option(False, "--show-config", help="Print what is in force."),
) -> int:
    """Drain Slurm nodes whose cards fail, requeue their jobs, resume what was drained.

    Example: rigcanary slurm --port 8401 --state /var/lib/rigcanary-slurm
    """
    from contract.errors import ConfigError
    from rigcanary.config import load, show
    from runner.slurm.settings import SlurmSettings

    names: dict[str, str] = {}
    for text in node:
        name, equals, slurm_name = text.partition("=")
        if not (name and equals and slurm_name):
            raise ConfigError(f"--node {text}: write NAME=SLURMNAME")
        names[name] = slurm_name
    overrides: dict[str, Any] = {
        "port": port,
        "host": host,
        "state_dir": state,
        "site": site,
        "nodes": names or None,
        "requeue": requeue,
    }
    settings = load(SlurmSettings, process="slurm", config_file=config, overrides=overrides)
    if show_config:
        print(show(settings))
        return 0
    from runner.slurm.server import serve

    return serve(settings)
