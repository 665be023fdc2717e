"""``rigcanary version``."""

from importlib.metadata import version

import orjson
import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(as_json: bool = typer.Option(False, "--json", help="One JSON object.")) -> None:
    """Print the version.

    Example: rigcanary version --json
    """
    number = version("rigcanary")
    print(orjson.dumps({"version": number}).decode() if as_json else f"rigcanary {number}")
