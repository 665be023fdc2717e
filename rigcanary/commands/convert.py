"""``rigcanary convert``."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Convert a public data set into a fleet data set.

    Example: rigcanary convert skab data/skab out/skab
    """


@app.command()
def skab(
    source: Annotated[Path, typer.Argument(help="Folder of SKAB, with data/valve1 and so on.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Convert SKAB, measurements of a water pump with induced faults.

    Example: rigcanary convert skab data/skab out/skab
    """
    import dataclasses

    import orjson

    from agents.convert.skab import convert

    report = convert(source, out)
    if as_json:
        print(orjson.dumps(dataclasses.asdict(report)).decode())
        return
    print(
        f"{report.rows_in} rows of {report.files} files in, {report.samples_out} samples of "
        f"{report.devices} devices out, to {out}\n"
        f"{report.duplicate_timestamps} repeated time stamps, {report.gaps} gaps of more than 2 s "
        f"(the longest {report.longest_gap_seconds:.0f} s), "
        f"{sum(report.implausible.values())} implausible values\n"
        f"{report.labelled_rows} labelled rows in {report.labels} runs, in labels.csv"
    )
