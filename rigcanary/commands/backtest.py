"""``rigcanary backtest``."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from contract.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command()
def main(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Fleet data set (folder).")],
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="TOML; defaults when left out.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="default (the shipped one) or a model folder.")
    ] = "default",
    budget: Annotated[
        float, typer.Option("--budget", help="False alarms a device-day that the threshold is for.")
    ] = 0.033,
    decisions: Annotated[
        Path | None,
        typer.Option("--decisions", metavar="FILE.jsonl", help="Every decision, one a line."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Try a policy on recorded history: moves, saves, false moves, and what the budget held.

    Example: rigcanary backtest fleet/ --policy policy.toml --json
    """
    from models.backtest import backtest, table
    from models.serve import load
    from stream import policy_file

    rules, predictor = policy_file.read(policy), load(model)
    if decisions is None:
        result = backtest(dataset, predictor, rules, budget)
    else:
        try:
            with decisions.open("wb") as file:
                result = backtest(dataset, predictor, rules, budget, file.write)
        except OSError as error:
            message = f"--decisions {decisions}: cannot write it: {error.strerror}"
            raise ConfigError(message) from error
    print(orjson.dumps(result).decode() if as_json else table(result))
