"""``rigcanary bridge``."""

import asyncio
import logging
import sys
from pathlib import Path

import typer

from rigcanary.config import load, show
from stream.bridge_settings import BridgeSettings

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    mqtt: str | None = typer.Option(None, "--mqtt", metavar="HOST:PORT", help="MQTT broker."),
    kafka: str | None = typer.Option(
        None, "--kafka", metavar="HOST:PORT[,…]", help="Kafka bootstrap servers."
    ),
    client_id: str | None = typer.Option(
        None, "--client-id", help="MQTT client id: one a bridge, kept over restarts."
    ),
    share: str | None = typer.Option(
        None, "--share", help="Bridges of a share divide the messages ('': no share)."
    ),
    profile: str | None = typer.Option(None, "--profile", help="kafka, or embedded (for Tansu)."),
    partitions: int | None = typer.Option(
        None, "--partitions", help="Of topics that have to be created."
    ),
    metrics_port: int | None = typer.Option(
        None, "--metrics-port", help="Port of /metrics (0: any)."
    ),
    config: Path | None = typer.Option(None, "--config", help="Settings file (TOML)."),
    show_config: bool = typer.Option(False, "--show-config", help="Print the settings and end."),
) -> None:
    """Carry messages from MQTT to Kafka, acknowledging each after Kafka has it.

    Example: rigcanary bridge --mqtt 127.0.0.1:1883 --kafka 127.0.0.1:9092 --metrics-port 9105
    """
    settings = load(
        BridgeSettings,
        process="bridge",
        config_file=config,
        overrides={
            "mqtt": mqtt,
            "kafka": kafka,
            "client_id": client_id,
            "share": share,
            "profile": profile,
            "partitions": partitions,
            "metrics_port": metrics_port,
        },
    )
    if show_config:
        print(show(settings))
        return
    from stream.edge.bridge import run_bridge

    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the bridge says it itself, once
    asyncio.run(run_bridge(settings))
