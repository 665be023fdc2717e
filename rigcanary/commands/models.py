"""``rigcanary models``."""

from datetime import UTC, datetime
from pathlib import Path

import orjson
import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)

REGISTRY = typer.Option(..., "--registry", metavar="FOLDER", help="The registry's folder.")
BY = typer.Option(None, "--by", metavar="NAME", help="Who does it; the login name if not given.")


@app.callback()
def _root() -> None:
    """Versions of the predictor: list, register, promote, roll back.

    Example: rigcanary models list --registry models/
    """


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@app.command("list")
def list_versions(
    registry: Path = REGISTRY,
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """List versions, which one serves, and which baselines beat them.

    Example: rigcanary models list --registry models/ --json
    """
    from models.registry import Registry

    store = Registry(registry)
    state = store.state
    roles = {state.champion: "champion", state.challenger: "challenger"}
    rows = [
        {
            "version": version,
            "role": roles.get(version, ""),
            "beaten_by": [str(defeat) for defeat in store.defeats(version)],
        }
        for version in store.versions()
    ]
    if as_json:
        print(orjson.dumps({"versions": rows, "history": state.history}).decode())
        return
    for row in rows:
        print(f"{row['version']:<30} {row['role']:<10} {'; '.join(row['beaten_by'])}".rstrip())


@app.command()
def register(
    model: Path = typer.Argument(..., metavar="MODEL", help="Folder that `train` wrote."),
    registry: Path = REGISTRY,
    by: str | None = BY,
) -> None:
    """Copy a model folder into the registry, as challenger.

    Example: rigcanary models register out/model --registry models/
    """
    from models.registry import Registry
    from rigcanary.commands._command import who

    version = Registry(registry).register(model, _now(), who(by))
    print(f"{version}: registered")


@app.command()
def promote(
    version: str = typer.Argument(..., metavar="VERSION"),
    registry: Path = REGISTRY,
    override: str | None = typer.Option(
        None, "--override", metavar="REASON", help="Although a baseline wins; recorded."
    ),
    by: str | None = BY,
) -> None:
    """Make a version champion; refused when a baseline catches more at equal budget.

    Example: rigcanary models promote ensemble-0123456789ab --registry models/
    """
    from models.registry import Registry
    from rigcanary.commands._command import who

    lost = Registry(registry).promote(version, _now(), who(by), override)
    print(f"{version}: champion")
    for defeat in lost:
        print(f"  passed over: {defeat}")


@app.command()
def rollback(
    registry: Path = REGISTRY,
    reason: str = typer.Option("", "--reason", help="Recorded."),
    by: str | None = BY,
) -> None:
    """Give the champion before the last promotion its place back.

    Example: rigcanary models rollback --registry models/ --reason "alarms at night"
    """
    from models.registry import Registry
    from rigcanary.commands._command import who

    print(f"{Registry(registry).roll_back(_now(), who(by), reason)}: champion again")
