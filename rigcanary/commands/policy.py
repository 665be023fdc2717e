"""``rigcanary policy``."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    file: Path | None = typer.Argument(None, metavar="FILE", help="The defaults when left out."),
    as_json: bool = typer.Option(False, "--json", help="What is in force, as one JSON object."),
) -> None:
    """Check a policy file and print what is in force; without FILE print the commented defaults.

    Example: rigcanary policy policy.toml
    """
    from stream import policy_file

    policy = policy_file.read(file)
    if file is None and not as_json:
        print(policy_file.DEFAULT.read_text(encoding="utf-8"), end="")
        return
    value = asdict(policy)
    option = 0 if as_json else orjson.OPT_INDENT_2
    print(orjson.dumps(value, default=_plain, option=option).decode())


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError
