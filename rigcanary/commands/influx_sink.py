"""``rigcanary influx-sink``."""

import asyncio
import logging
from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    kafka: str | None = typer.Option(
        None, "--kafka", metavar="HOST:PORT[,…]", help="Kafka bootstrap servers."
    ),
    profile: str | None = typer.Option(None, "--profile", help="kafka, or embedded (for Tansu)."),
    url: str | None = typer.Option(None, "--url", metavar="URL", help="InfluxDB 2."),
    org: str | None = typer.Option(None, "--org", help="Its organization."),
    bucket: str | None = typer.Option(None, "--bucket", help="Its bucket."),
    metrics_port: int | None = typer.Option(
        None, "--metrics-port", help="Port of /metrics (0: any)."
    ),
    config: Path | None = typer.Option(None, "--config", help="Settings file (TOML)."),
    show_config: bool = typer.Option(False, "--show-config", help="Print the settings and end."),
) -> None:
    """Write minute rows, risks, decisions and events from Kafka to InfluxDB 2.

    The token comes from RIGCANARY_INFLUX_SINK_INFLUX__TOKEN_FILE, or influx.token of --config.

    Example: rigcanary influx-sink --kafka 127.0.0.1:9092 --url http://127.0.0.1:8086
    """
    from rigcanary.config import load, show
    from rigcanary.logs import log_to_stderr
    from stream.influx_settings import InfluxSinkSettings

    influx = {"url": url, "org": org, "bucket": bucket}
    given = {name: value for name, value in influx.items() if value is not None}
    settings = load(
        InfluxSinkSettings,
        process="influx-sink",
        config_file=config,
        overrides={
            "kafka": kafka,
            "profile": profile,
            "metrics_port": metrics_port,
            "influx": given or None,
        },
    )
    if show_config:
        print(show(settings))
        return
    from stream.edge.influx_sink import run_influx_sink

    log_to_stderr()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the sink says it itself, once
    asyncio.run(run_influx_sink(settings))
