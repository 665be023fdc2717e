"""``rigcanary demo``."""

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    speed: float | None = typer.Option(None, help="Simulated seconds a second [60]."),
    seed: int | None = typer.Option(None, help="Of the story; the same seed, the same story [7]."),
    rigs: int | None = typer.Option(None, help="Simulated rigs [16]."),
    cards: int | None = typer.Option(None, help="Cards of a rig [8]."),
    plain: bool = typer.Option(False, "--plain", help="Log lines instead of the live view."),
    report: Path | None = typer.Option(
        None, metavar="DIR", help="Write report.json and report.html there."
    ),
    state: Path | None = typer.Option(
        None, metavar="DIR", help="Empty folder for state and logs [a temporary one]."
    ),
    mqtt_port: int | None = typer.Option(None, help="MQTT port [any free one]."),
    kafka_port: int | None = typer.Option(None, help="Kafka port [any free one]."),
    runner_port: int | None = typer.Option(None, help="Runner's HTTP port [any free one]."),
    web_port: int | None = typer.Option(None, help="Port of the fleet's page [any free one]."),
    model: str | None = typer.Option(None, help="Folder of a trained model, or default."),
    config: Path | None = typer.Option(None, help="Settings as TOML."),
    show_config: bool = typer.Option(False, "--show-config", help="Print the settings, end."),
) -> int:
    """Show the whole path on this machine: simulated rigs to a moved training job.

    Example: rigcanary demo --report out/

    Starts the real processes on embedded brokers, plays four simulated hours in four minutes,
    and ends by itself. Exit code 0 when the job was moved off the failing card in time.
    """
    from onebox.settings import DemoSettings
    from rigcanary.config import load, show

    settings = load(
        DemoSettings,
        process="demo",
        config_file=config,
        overrides={
            "speed": speed,
            "seed": seed,
            "rigs": rigs,
            "cards": cards,
            "plain": plain or None,
            "report": report,
            "state": state,
            "mqtt_port": mqtt_port,
            "kafka_port": kafka_port,
            "runner_port": runner_port,
            "web_port": web_port,
            "model": model,
        },
    )
    if show_config:
        print(show(settings))
        return 0
    from onebox.demo import run

    return run(settings, lambda line: print(line, flush=True))
