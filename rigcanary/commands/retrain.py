"""``rigcanary retrain``."""

import asyncio
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import typer

from contract.errors import ConfigError, RigcanaryError

app = typer.Typer(add_completion=False)


@app.command()
def main(
    registry: Path = typer.Option(..., "--registry", metavar="FOLDER", help="Models' registry."),
    state: Path | None = typer.Option(
        None, "--state", metavar="DIR", help="State folder of a worker or of serve: its history."
    ),
    kafka: str | None = typer.Option(
        None, "--kafka", metavar="HOST:PORT", help="Minute rows from Kafka instead."
    ),
    dataset: Path | None = typer.Option(
        None, "--dataset", metavar="DATASET", help="An exported data set instead."
    ),
    judge: Path | None = typer.Option(
        None,
        "--judge",
        metavar="DATASET",
        help="Judge on this set; else on every fifth rig, kept out of training.",
    ),
    base: str = typer.Option(
        "default", "--base", metavar="MODEL", help="Go on from this model; none: from nothing."
    ),
    epochs: int = typer.Option(14, "--epochs", min=1, help="At most this many."),
    windows: int = typer.Option(40_000, "--windows", min=200, help="Training windows, at most."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of split, windows, weights."),
    promote: bool = typer.Option(
        False, "--promote", help="Make it champion, unless a baseline wins."
    ),
    by: str | None = typer.Option(None, "--by", metavar="NAME", help="Who does it."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Export, train, evaluate and register in one go; made for cron.

    A running worker whose model is the registry scores the new version in the champion's shadow,
    and serves it once it is promoted. Exit code 1 when --promote was refused.

    Example: rigcanary retrain --state ~/.local/state/rigcanary --registry models/ --promote
    """
    from models.fit import FitOptions
    from models.holdout import hold_out
    from models.registry import Registry
    from models.serve import load
    from models.train import FOLDS, TrainOptions, train
    from rigcanary.commands._command import who

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if sum(source is not None for source in (kafka, dataset)) > 1 or (
        state is None and kafka is None and dataset is None
    ):
        raise ConfigError("retrain needs one of --state DIR, --kafka HOST:PORT, --dataset DATASET")
    store, person = Registry(registry), who(by)
    with tempfile.TemporaryDirectory(prefix="rigcanary-retrain-") as folder:
        work = Path(folder)
        learn = dataset if dataset is not None else _exported(state, kafka, work / "set", say)
        if judge is None:
            learn, judge = hold_out(learn, work / "parts")
            say("every fifth rig is kept for judging")
        options = TrainOptions(
            seed=seed,
            max_windows=windows,
            folds=FOLDS,
            base="" if base == "none" else base,
            fit=FitOptions(epochs=epochs, seed=seed),
        )
        command = shlex.join(["rigcanary", *sys.argv[1:]])
        train([learn], work / "model", options, say, command)
        result = _judged(judge, load(work / "model"), say)
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        version = store.register(work / "model", at, person, result)
    refused = ""
    if promote:
        try:
            store.promote(version, at, person)
        except RigcanaryError as error:
            refused = str(error)
    _report(version, result, promote, refused, as_json)
    if refused:
        raise typer.Exit(1)


def _exported(state: Path | None, kafka: str | None, out: Path, say: Any) -> Path:
    from stream.edge.export import export_kafka, export_state

    say("exporting the recorded history")
    if kafka is not None:
        asyncio.run(export_kafka(kafka, out, state))
    elif state is not None:
        export_state(state, out)
    return out


def _judged(judge: Path, predictor: Any, say: Any) -> dict[str, Any]:
    from models.evaluate import evaluate, table

    say("judging on cards that training did not see")
    result = evaluate(judge, predictor)
    say(table(result))
    return result


def _report(
    version: str, result: dict[str, Any], promote: bool, refused: str, as_json: bool
) -> None:
    served = next(p for p in result["policies"] if p["role"] == "served")
    summary = {
        "version": version,
        "promoted": promote and not refused,
        "refused": refused or None,
        "judged_devices": result["devices"],
        "judged_failures": result["failures"],
        "event_recall": served["event_recall"],
        "false_alarms_per_device_day": served["false_alarms_per_device_day"],
    }
    if as_json:
        print(orjson.dumps(summary).decode())
        return
    role = "champion" if summary["promoted"] else "challenger"
    print(
        f"{version}: registered as {role}; {served['event_recall']:.2f} of "
        f"{result['failures']} failures seen at {served['false_alarms_per_device_day']:.4f} "
        "false alarms a device-day"
    )
    if refused:
        print(f"not promoted: {refused}", file=sys.stderr)
