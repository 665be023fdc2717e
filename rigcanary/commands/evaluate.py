"""``rigcanary evaluate``."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Fleet data set (folder).")],
    model: Annotated[
        str, typer.Option("--model", help="default (the shipped one) or a model folder.")
    ] = "default",
    budget: Annotated[
        list[float] | None,
        typer.Option("--budget", help="False alarms a device-day; may be given several times."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FILE.parquet", help="Every scored minute.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Judge a model and the baselines on a fleet data set.

    Example: rigcanary evaluate fleet/ --model default --json
    """
    from models.evaluate import BUDGETS, evaluate, table
    from models.serve import load

    result = evaluate(dataset, load(model), tuple(budget or BUDGETS), scores)
    print(orjson.dumps(result).decode() if as_json else table(result))
