"""``rigcanary simulate``."""

import dataclasses
import json
import sys
import time
from enum import StrEnum
from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


class Format(StrEnum):
    """Files that the telemetry is written as."""

    parquet = "parquet"
    csv = "csv"


class Domain(StrEnum):
    """How far the constants of the simulated cards stray."""

    default = "default"
    wide = "wide"


@app.command()
def main(
    out: Path = typer.Argument(..., metavar="OUT", help="Folder to write the data set to."),
    rigs: int = typer.Option(20, "--rigs", help="Number of rigs."),
    cards: int = typer.Option(8, "--cards", help="Cards a rig."),
    days: float = typer.Option(2.0, "--days", help="Simulated days."),
    seed: int = typer.Option(1, "--seed", help="Another seed is another fleet."),
    failure_share: float = typer.Option(
        0.4, "--failure-share", help="Share of the cards that fail within the days."
    ),
    move_share: float = typer.Option(
        0.0, "--move-share", help="Share of those that are taken out of service in time."
    ),
    interval: float = typer.Option(5.0, "--interval", help="Seconds between samples."),
    domain: Domain = typer.Option(
        Domain.default, "--domain", help="How far the cards' constants stray."
    ),
    kind: list[str] | None = typer.Option(
        None, "--kind", help="Only this kind of failure (may be repeated)."
    ),
    site: str = typer.Option("fleet", "--site", help="Name of the site."),
    form: Format = typer.Option(Format.parquet, "--format", help="Files of the telemetry."),
    force: bool = typer.Option(False, "--force", help="Replace a data set that is there."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Write a simulated fleet data set: telemetry, failures.csv and, with moves, moves.csv.

    Example: rigcanary simulate fleet/ --rigs 20 --cards 8 --days 2 --seed 1
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    from simulator.dataset import write_fleet
    from simulator.fleet import FleetSpec

    spec = FleetSpec(
        rigs=rigs,
        cards=cards,
        days=days,
        seed=seed,
        failure_share=failure_share,
        interval_seconds=interval,
        domain=domain.value,
        site=site,
        move_share=move_share,
        kinds=tuple(kind or ()),
    )
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    began = time.monotonic()
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=1.0)
        summary = write_fleet(
            spec,
            out,
            form.value,
            force=force,
            progress=lambda share: bar.update(task, completed=share),
        )
    seconds = time.monotonic() - began
    if as_json:
        answer = {
            "out": str(out),
            **dataclasses.asdict(summary),
            "seconds": round(seconds, 3),
            "device_days_per_minute": round(summary.device_days * 60 / seconds, 1),
        }
        print(json.dumps(answer))
        return
    print(
        f"{out}: {summary.rows:,} rows of {summary.devices} cards, "
        f"{summary.device_days:.1f} device-days, {summary.failures} failures "
        f"in {seconds:.0f} s"
    )
    for name, count in summary.by_kind.items():
        print(f"  {name:<16}{count:>5}")
