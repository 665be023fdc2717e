"""Jobs and migrations as the JSON that the database keeps."""

from dataclasses import asdict
from typing import Any

import orjson

from runner.account import account_from
from runner.job import Job, JobSpec, JobState
from runner.migration import Migration, MigrationState, Step
from runner.placement import Place


def job_to_json(job: Job) -> str:
    """One job as JSON text; :func:`job_from_json` gives it back."""
    return orjson.dumps(asdict(job)).decode()


def job_from_json(text: str) -> Job:
    """The job that :func:`job_to_json` wrote."""
    value: dict[str, Any] = orjson.loads(text)
    spec = value.pop("spec")
    for key in ("command", "nodes", "devices", "prefer"):
        if spec[key] is not None:
            spec[key] = tuple(spec[key])
    value["state"] = JobState(value["state"])
    value["places"] = _places(value["places"])
    value["home"] = _places(value.get("home", []))
    if "account" in value:  # not in what older versions wrote
        value["account"] = account_from(value["account"])
    return Job(spec=JobSpec(**spec), **value)


def migration_to_json(migration: Migration) -> str:
    """One migration as JSON text; :func:`migration_from_json` gives it back."""
    return orjson.dumps(asdict(migration)).decode()


def migration_from_json(text: str) -> Migration:
    """The migration that :func:`migration_to_json` wrote."""
    value: dict[str, Any] = orjson.loads(text)
    value["state"] = MigrationState(value["state"])
    value["from_places"] = _places(value["from_places"])
    value["to_places"] = _places(value["to_places"])
    value["steps"] = tuple(Step(**step) for step in value["steps"])
    return Migration(**value)


def _places(values: list[dict[str, Any]]) -> tuple[Place, ...]:
    return tuple(Place(**value) for value in values)
