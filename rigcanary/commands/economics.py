"""``rigcanary economics``."""

import json
import tomllib
from pathlib import Path
from typing import Any

import orjson
import typer

from contract.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command()
def main(
    fleet: Path | None = typer.Option(
        None,
        "--fleet",
        metavar="FILE.toml",
        help="The fleet's numbers.",
    ),
    numbers: list[str] | None = typer.Option(
        None, "--set", metavar="NAME=NUMBER", help="One of the numbers; may be given several times."
    ),
    evaluation: Path | None = typer.Option(
        None,
        "--evaluation",
        metavar="FILE.json",
        help="What `rigcanary evaluate --json` printed: recall, false alarms, curve.",
    ),
    budget: float = typer.Option(0.033, "--budget", help="Whose row of the evaluation is taken."),
    replications: int = typer.Option(20, "--replications", min=1, max=1000, help="Simulated runs."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """What failures cost a fleet, what warnings are worth, and how often to checkpoint.

    Simulates the fleet event by event with and without the predictor, and gives the closed forms
    beside it. `rigcanary economics --json | jq .numbers` shows every number that can be set.

    Example: rigcanary economics --set cards=64 --set world=32 --set recall=0.7
    """
    from economics.compare import compare
    from economics.fleet import Fleet

    values = _toml(fleet) if fleet is not None else {}
    for one in numbers or ():
        name, equals, text = one.partition("=")
        try:
            values[name] = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--set {one}: NAME=NUMBER") from error
        if not equals:
            raise ConfigError(f"--set {one}: NAME=NUMBER")
    curve: list[dict[str, float]] = []
    if evaluation is not None:
        served, curve = _served(evaluation, budget)
        values = served | values
    question = Fleet.of(values)
    answer = compare(question, curve, replications)
    answer["numbers"] = {name: getattr(question, name) for name in question.__slots__}
    if as_json:
        print(orjson.dumps(answer).decode())
    else:
        print(_table(answer))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--fleet {path}: cannot read it: {error}") from error


def _served(path: Path, budget: float) -> tuple[dict[str, Any], list[dict[str, float]]]:
    try:
        policies = json.loads(path.read_text(encoding="utf-8"))["policies"]
        served = [p for p in policies if p["role"] == "served"]
        row = next(p for p in served if p["false_alarm_budget_per_device_day"] == budget)
        numbers = {
            "recall": row["event_recall"],
            "false_alarms_per_device_day": row["false_alarms_per_device_day"],
        }
        curve = [
            {"threshold": p["threshold"], **{k: p[k] for k in ("event_recall", *list(numbers)[1:])}}
            for p in row["curve"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--evaluation {path}: not what `rigcanary evaluate --json` prints: {error!r}"
        ) from error
    except StopIteration:
        raise ConfigError(f"--evaluation {path}: has no budget {budget:g}") from None
    return numbers, curve


def _table(answer: dict[str, Any]) -> str:
    numbers = answer["numbers"]
    lines = [
        f"{numbers['cards']} cards, a job on {numbers['world']} of them, {numbers['days']:g} days, "
        f"{answer['replications']} runs",
        "",
        f"{'':<34}{'without':>12}{'with':>12}",
    ]

    def row(label: str, key: str, scale: float = 1.0, form: str = ".2f") -> None:
        cells = [
            "–" if answer[s][key] is None else format(answer[s][key] * scale, form)
            for s in ("without", "with")
        ]
        lines.append(f"{label:<34}{cells[0]:>12}{cells[1]:>12}")

    row("goodput, % of the time", "goodput", 100)
    row("  by the closed form", "goodput_closed_form", 100)
    row("cards in service, %", "card_availability", 100)
    row("failures in the time", "failures_per_run", form=".1f")
    row("  foreseen", "foreseen_per_run", form=".1f")
    row("moves for nothing", "false_alarms_per_run", form=".1f")
    row("waiting for a card, % of the time", "waiting_share", 100)
    row("cost of a million samples", "cost_per_million_samples", form=".4f")
    best = answer["best_interval"]
    lines += [
        "",
        f"warnings save {answer['saved_card_hours']:.0f} card-hours, worth "
        f"{answer['saved_money']:.0f}",
        f"best checkpoint interval {best['seconds']:.0f} s (Young {best['young_seconds']:.0f}, "
        f"Daly {best['daly_seconds']:.0f}); it is {numbers['checkpoint_interval_seconds']:.0f} s",
    ]
    if "best_threshold" in answer:
        at = answer["best_threshold"]
        lines.append(
            f"best threshold {at['threshold']:.4f}: recall {at['event_recall']:.2f}, "
            f"{at['false_alarms_per_device_day']:.4f} false alarms a device-day"
        )
    return "\n".join(lines)
