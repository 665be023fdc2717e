"""``rigcanary jobs``."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import typer

from contract.errors import ConfigError, RigcanaryError

app = typer.Typer(add_completion=False, no_args_is_help=True)

RUNNER: Final = "http://127.0.0.1:8400"
TOKEN_VARIABLE: Final = "RIGCANARY_RUNNER_TOKEN_FILE"
DEFAULT_TOKEN_FILE: Final = Path("rigcanary-state/runner/token")
ANSWER_SECONDS: Final = 10.0

URL = typer.Option(RUNNER, "--runner", metavar="URL", help="The runner's address.")
TOKEN = typer.Option(
    None, "--token-file", help=f"File with its token; else ${TOKEN_VARIABLE}, {DEFAULT_TOKEN_FILE}."
)
JSON = typer.Option(False, "--json", help="Print what the runner answers, as JSON.")


@app.callback()
def _root() -> None:
    """Training jobs of a runner: look at them, start and stop them.

    Example: rigcanary jobs list --runner http://127.0.0.1:8400 --token-file runner-state/token
    """


class _Runner:
    """One runner's HTTP interface, for a person with its token."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        self._url = url.rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"--runner {url!r} is no URL; write for example {RUNNER}")
        path = token_file or Path(os.environ.get(TOKEN_VARIABLE) or DEFAULT_TOKEN_FILE)
        try:
            self._token = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is no token"
            raise ConfigError(
                f"--token-file {path}: {reason}; the runner names the file in its log at its start"
            ) from error

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON (or text) of an answer.

        Raises:
            RigcanaryError: when there is none, or it is an error.
        """
        request = urllib.request.Request(  # noqa: S310 - the user's URL, http or https
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:  # noqa: S310
                raw = reply.read()
                kind = reply.headers.get_content_type()
                return json.loads(raw) if kind == "application/json" else raw.decode()
        except urllib.error.HTTPError as error:
            raise RigcanaryError(f"{self._url}: {_detail(error)}") from error
        except (OSError, ValueError) as error:
            raise RigcanaryError(
                f"--runner {self._url}: no answer ({getattr(error, 'reason', error)}); "
                "is it running, and is this its address?"
            ) from error


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        detail = json.load(error)["detail"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"answered {error.code}"
    if isinstance(detail, list):
        detail = "; ".join(f"{'.'.join(map(str, d['loc'][1:]))}: {d['msg']}" for d in detail)
    return str(detail)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _line(job: dict[str, Any]) -> str:
    where = ", ".join(p["node"] + (f"/{p['device']}" if p["device"] else "") for p in job["places"])
    parts = [job["id"], job["state"], job["name"], where or "-"]
    parts.append("-" if job["step"] is None else f"step {job['step']}")
    parts.append("-" if job["loss"] is None else f"loss {job['loss']:.4g}")
    speed, goodput = job["steps_per_second"], job["goodput"]
    parts.append("-" if speed is None else f"{speed:.3g} steps/s")
    parts.append("-" if goodput is None else f"goodput {goodput:.0%}")
    return "  ".join(parts) + (f"\n    {job['error']}" if job["error"] else "")


@app.command("list")
def list_jobs(
    runner: str = URL,
    token_file: Path | None = TOKEN,
    limit: int = typer.Option(100, "--limit", min=1, max=1000, help="The newest so many."),
    as_json: bool = JSON,
) -> None:
    """List jobs, newest first: id, state, name, place, step, loss, speed, goodput.

    Example: rigcanary jobs list --json
    """
    jobs = _Runner(runner, token_file).ask("GET", f"/v1/jobs?limit={limit}")
    if as_json:
        _print_json(jobs)
        return
    for job in jobs:
        print(_line(job))
    print(f"{len(jobs)} jobs")


@app.command()
def show(
    job_id: str = typer.Argument(metavar="ID"),
    runner: str = URL,
    token_file: Path | None = TOKEN,
    as_json: bool = JSON,
) -> None:
    """Show one job and every move that it made, step by step.

    Example: rigcanary jobs show job-5f0c3a2b1d4e
    """
    api = _Runner(runner, token_file)
    job = api.ask("GET", f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}")
    moves = [m for m in api.ask("GET", "/v1/migrations?limit=1000") if m["job"] == job["id"]]
    if as_json:
        _print_json({"job": job, "migrations": moves})
        return
    print(_line(job))
    print(f"    start {job['generation']}, checkpoints in {job['checkpoint_dir']}")
    for move in reversed(moves):
        card = f"{move['node']}/{move['device']}" if move["device"] else move["node"]
        print(f"  {move['requested_at']}  off {card} ({move['cause']}): {move['state']}")
        for step in move["steps"]:
            print(f"    {step['at']}  {step['step']} {step['outcome']}  {step['detail']}")


@app.command()
def submit(
    file: typer.FileText = typer.Argument(metavar="JOB.json", help="The job, - reads it."),
    runner: str = URL,
    token_file: Path | None = TOKEN,
) -> None:
    """Queue the job that a JSON file describes; prints its id.

    Example: rigcanary jobs submit job.json
    """
    try:
        body = json.load(file)
    except ValueError as error:
        raise ConfigError(f"{file.name}: is not JSON: {error}") from error
    print(_Runner(runner, token_file).ask("POST", "/v1/jobs", body)["id"])


@app.command()
def cancel(
    job_id: str = typer.Argument(metavar="ID"),
    runner: str = URL,
    token_file: Path | None = TOKEN,
) -> None:
    """Stop a job for good, with a checkpoint.

    Example: rigcanary jobs cancel job-5f0c3a2b1d4e
    """
    api = _Runner(runner, token_file)
    job = api.ask("DELETE", f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}")
    print(f"{job['id']} is {job['state']}")


@app.command()
def logs(
    job_id: str = typer.Argument(metavar="ID"),
    runner: str = URL,
    token_file: Path | None = TOKEN,
    rank: int = typer.Option(0, "--rank", min=0, help="Of this process of the job."),
) -> None:
    """Print the end of what a job's process wrote (64 KiB at most).

    Example: rigcanary jobs logs job-5f0c3a2b1d4e --rank 0
    """
    path = f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}/logs?rank={rank}"
    print(_Runner(runner, token_file).ask("GET", path), end="")
