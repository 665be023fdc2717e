"""``rigcanary train``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    datasets: Annotated[
        list[Path], typer.Argument(metavar="DATASET…", help="Fleet data sets (folders).")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder to write.")],
    validation: Annotated[
        list[Path] | None,
        typer.Option(
            "--validation",
            metavar="DATASET",
            help="Validate on this set instead of a part of DATASET; may be given several times.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="At most this many.")] = 14,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of split, windows, weights.")] = 0,
    windows: Annotated[
        int, typer.Option("--windows", min=200, help="Training windows to draw, at most.")
    ] = 40_000,
    split: Annotated[
        str,
        typer.Option(
            "--split",
            help="auto; device+time: validate on other cards, later; device: on other cards.",
        ),
    ] = "auto",
    base: Annotated[
        str,
        typer.Option(
            "--base", metavar="MODEL", help="Go on from this model; none: learn from nothing."
        ),
    ] = "default",
    validation_days: Annotated[
        float,
        typer.Option(
            "--validation-days", min=1, help="Device-days to walk for the thresholds, at most."
        ),
    ] = 1000.0,
    origin: Annotated[
        str, typer.Option("--origin", help="What the data are, for the model card.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the model card as JSON.")] = False,
) -> None:
    """Train a predictor on fleet data sets and write a model folder.

    Example: rigcanary train fleet/ --out models/mine --epochs 14 --seed 0
    """
    from contract.errors import ConfigError
    from models.fit import FitOptions
    from models.train import FOLDS, TrainOptions, train

    if split not in ("auto", "device", "device+time"):
        raise ConfigError(f"--split {split}: auto, device+time or device")
    options = TrainOptions(
        seed=seed,
        max_windows=windows,
        time_share=None if split == "device" else 0.6,
        folds=FOLDS if split == "auto" and not validation else 0,
        base="" if base == "none" else base,
        validation_days=validation_days,
        origin=origin,
        fit=FitOptions(epochs=epochs, seed=seed),
    )

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    command = shlex.join(["rigcanary", *sys.argv[1:]])
    card = train(datasets, out, options, say, command, validation or ())
    if as_json:
        print(orjson.dumps(card).decode())
        return
    print(f"{out}: {card['version']}, trained on {card['trained_on']}")
    for name, policy in card["policies"].items():
        for at in policy["validation"]:
            print(
                f"  {name:<20} budget {at['false_alarm_budget_per_device_day']:<6g} recall "
                f"{at['event_recall']:.2f}  precision {at['precision']:.2f}  threshold "
                f"{at['threshold']:.4f}"
            )
