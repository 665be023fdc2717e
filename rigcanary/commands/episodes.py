"""``rigcanary episodes``."""

from typing import Any
from urllib.parse import urlencode

import orjson
import typer

from rigcanary.commands import _command

app = typer.Typer(add_completion=False)


@app.command()
def main(
    device: str = typer.Option("", "--device", help="Of one card."),
    node: str = typer.Option("", "--node", metavar="SITE/NODE", help="Of one node."),
    only_open: bool = typer.Option(False, "--open", help="Stories that have not ended."),
    limit: int = typer.Option(50, "--limit", min=1, max=1000, help="How many, newest first."),
    web: str = typer.Option(_command.WEB, help="Page of the worker that owns the cards."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Show the stories of cards from the first sign to the release.

    Example: rigcanary episodes --open --node lab/rig001
    """
    query: dict[str, Any] = {"device": device, "limit": limit, "open": int(only_open)}
    if node:
        query["site"], query["node"] = _command.split_node(node)
    found = _command.fetch(web, f"/api/episodes?{urlencode(query)}")
    if as_json:
        print(orjson.dumps(found).decode())
        return
    for story in found["episodes"]:
        print(_text(story))
    if not found["episodes"]:
        print("no episodes")


def _text(story: dict[str, Any]) -> str:
    card = f"{story['site']}/{story['node']} {story['device'] or '(whole node)'}"
    state = "closed" if not story["open"] else story["state"] or "open"
    repeat = ", repeat offender" if story["repeat_offender"] else ""
    head = f"{card}  {state}{repeat}  {story['cause']} ({', '.join(story['rules'])})"
    lines = [f"{head}  {story['episode_id']}  move: {story['migration']}"]
    for entry in story["log"]:
        detail = {k: v for k, v in entry.items() if k not in ("at", "what")}
        words = " ".join(f"{k}={v}" for k, v in detail.items())
        lines.append(f"  {entry['at']}  {entry['what']}  {words}".rstrip())
    return "\n".join(lines)
