"""``rigcanary influx-init``."""

from pathlib import Path

import orjson
import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    url: str | None = typer.Option(None, "--url", metavar="URL", help="InfluxDB 2."),
    org: str | None = typer.Option(None, "--org", help="Its organization, which must be there."),
    bucket: str | None = typer.Option(None, "--bucket", help="A point a card and minute."),
    retention_days: int | None = typer.Option(
        None, "--retention-days", help="Of the bucket; 0 keeps for ever."
    ),
    hourly_bucket: str | None = typer.Option(
        None, "--hourly-bucket", help="A point a card and hour."
    ),
    hourly_retention_days: int | None = typer.Option(
        None, "--hourly-retention-days", help="Of the hourly bucket; 0 keeps for ever."
    ),
    config: Path | None = typer.Option(None, "--config", help="Settings file (TOML)."),
    show_config: bool = typer.Option(False, "--show-config", help="Print the settings and end."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Make InfluxDB's buckets with their retention, and the tasks that downsample; may be repeated.

    The token comes from RIGCANARY_INFLUX_INIT_TOKEN_FILE, or token of --config.

    Example: rigcanary influx-init --url http://127.0.0.1:8086 --retention-days 90
    """
    from rigcanary.config import load, show
    from stream.influx_settings import InfluxInitSettings

    settings = load(
        InfluxInitSettings,
        process="influx-init",
        config_file=config,
        overrides={
            "url": url,
            "org": org,
            "bucket": bucket,
            "retention_days": retention_days,
            "hourly_bucket": hourly_bucket,
            "hourly_retention_days": hourly_retention_days,
        },
    )
    if show_config:
        print(show(settings))
        return
    from stream.edge.influx_init import prepare

    done = prepare(settings)
    if as_json:
        print(orjson.dumps(done).decode())
        return
    for name, what in done.items():
        print(f"{name}: {what}")
