"""``rigcanary worker``."""

import os
from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    kafka: str = typer.Option(None, help="Kafka bootstrap servers, HOST:PORT[,HOST:PORT…]."),
    profile: str = typer.Option(None, help="kafka, or embedded for the broker that serve starts."),
    state: Path = typer.Option(None, help="Folder for the history."),
    web_port: int = typer.Option(None, help="Port of the page, /healthz and /metrics."),
    web_host: str = typer.Option(None, help="Address of the page; loopback by default."),
    model: str = typer.Option(None, help="Folder of a trained model, or default."),
    instance: str = typer.Option(None, help="Stable name of this worker within its group."),
    policy: Path = typer.Option(None, help="TOML file of the policy; see rigcanary policy."),
    dry_run: str = typer.Option(None, help="auto, on or off: decide but do not send."),
    config: Path = typer.Option(None, "--config", help="TOML file with settings, receivers too."),
    show_config: bool = typer.Option(False, "--show-config", help="Print what is in force, end."),
) -> None:
    """Turn readings into windows, risks and decisions (Faust).

    Example: rigcanary worker --kafka 127.0.0.1:9092 --config worker.toml
    """
    from rigcanary.config import load, show
    from rigcanary.logs import log_to_stderr
    from stream import policy_file
    from stream.settings import WorkerSettings

    settings = load(
        WorkerSettings,
        process="worker",
        config_file=config,
        overrides={
            "kafka": kafka,
            "profile": profile,
            "state": state,
            "web_port": web_port,
            "web_host": web_host,
            "model": model,
            "instance": instance,
            "policy": policy,
            "dry_run": dry_run,
        },
    )
    if show_config:
        print(show(settings))
        return
    # Read here too: a wrong table is refused before anything is started.
    policy_file.read(settings.policy)
    log_to_stderr()
    # Before NumPy is imported: scoring's matrices are small, threads would only wait for each
    # other, and the other cores belong to Faust and to other workers.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stream.edge.run import run

    raise typer.Exit(run(settings))
