"""``rigcanary failure``."""

import time
from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    device: str = typer.Argument(..., metavar="DEVICE", help="The card's id, as in telemetry."),
    at: str = typer.Option(..., "--at", metavar="TIME", help="RFC 3339 or Unix seconds."),
    kind: str = typer.Option("", "--kind", metavar="KIND", help="What failed, in your words."),
    state: Path | None = typer.Option(
        None, "--state", metavar="DIR", help="State folder [~/.local/state/rigcanary]."
    ),
    replace: bool = typer.Option(False, "--replace", help="Put it in place of an earlier one."),
) -> None:
    """Record what really happened to a card; ``export`` writes it as a label for training.

    Example: rigcanary failure GPU-4f2a --at 2026-03-01T14:05:00Z --kind fan_bearing
    """
    from contract.times import rfc3339
    from stream.edge import labels

    if state is None:
        from onebox.settings import default_state

        state = default_state()
    failure = labels.check(device, labels.parse_time(at), kind, time.time_ns() // 1_000_000)
    path = state / labels.FILE
    when = rfc3339(failure.failed_ms)
    if labels.record(state, failure, replace=replace):
        print(f"{device} failed at {when} ({kind or 'no kind'}): recorded in {path}")
    else:
        print(f"{device} failed at {when} ({kind or 'no kind'}): already in {path}")
