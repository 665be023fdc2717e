"""``rigcanary serve``."""

from pathlib import Path

import typer
from pydantic import SecretStr

app = typer.Typer(add_completion=False)


def _check_worker(webhook: str | None, secret: SecretStr | None) -> None:
    """What the worker would refuse is said before anything is started.

    Raises:
        ConfigError: as the worker would.
    """
    from rigcanary.config import load
    from stream.settings import WorkerSettings

    receivers: list[dict[str, object]] = []
    if webhook is not None and secret is not None:
        receivers.append(
            {"name": "webhook", "url": webhook, "secret": secret, "allow_private": True}
        )
    load(WorkerSettings, process="worker", overrides={"receivers": receivers})


@app.command()
def main(
    mqtt_port: int | None = typer.Option(None, help="MQTT 3.1.1 port [1883; 0: any free one]."),
    mqtt_v5_port: int | None = typer.Option(None, help="One more port, for MQTT 5 clients."),
    kafka_port: int | None = typer.Option(None, help="Kafka port [9092; 0: any free one]."),
    runner_port: int | None = typer.Option(None, help="Runner's HTTP port [8400; 0: any]."),
    web_port: int | None = typer.Option(None, help="Port of the fleet's page [6067; 0: any]."),
    site: str | None = typer.Option(None, help="Name of the place the rigs stand in [lab]."),
    webhook: str | None = typer.Option(None, metavar="URL", help="One more receiver of decisions."),
    webhook_secret: str | None = typer.Option(
        None,
        metavar="whsec_…",
        help="Its secret; better RIGCANARY_SERVE_WEBHOOK_SECRET_FILE, which ps does not show.",
    ),
    state: Path | None = typer.Option(
        None, metavar="DIR", help="What it remembers [~/.local/state/rigcanary]."
    ),
    model: str | None = typer.Option(None, help="Folder of a trained model, or default."),
    kafka_memory_mb: int | None = typer.Option(
        None, help="Memory at which the embedded Kafka is started afresh [512]."
    ),
    config: Path | None = typer.Option(None, help="Settings as TOML."),
    show_config: bool = typer.Option(False, "--show-config", help="Print the settings, end."),
) -> int:
    """Run the server side on this machine: brokers, bridge, worker, runner.

    Example: rigcanary serve --site lab-a --state ./state

    When it is ready it prints one line of JSON with the addresses of its parts; everything
    listens on 127.0.0.1. Logs go to standard error.
    """
    from onebox.settings import ServeSettings
    from rigcanary.config import load, show

    settings = load(
        ServeSettings,
        process="serve",
        config_file=config,
        overrides={
            "mqtt_port": mqtt_port,
            "mqtt_v5_port": mqtt_v5_port,
            "kafka_port": kafka_port,
            "runner_port": runner_port,
            "web_port": web_port,
            "site": site,
            "webhook": webhook,
            "webhook_secret": webhook_secret,
            "state": state,
            "model": model,
            "kafka_memory_mb": kafka_memory_mb,
        },
    )
    if show_config:
        print(show(settings))
        return 0
    _check_worker(settings.webhook, settings.webhook_secret)
    from onebox.serve import run
    from rigcanary.logs import log_to_stderr

    log_to_stderr()
    return run(settings, lambda line: print(line, flush=True))
