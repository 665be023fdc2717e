"""Buckets, retention and downsampling of the history in InfluxDB 2; may be repeated at will."""

from typing import Any, Final

from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.domain.bucket_retention_rules import BucketRetentionRules
from influxdb_client.domain.task_create_request import TaskCreateRequest
from influxdb_client.domain.task_update_request import TaskUpdateRequest
from urllib3.exceptions import HTTPError

from contract.errors import ConfigError, RigcanaryError
from stream.influx_settings import InfluxInitSettings

TIMEOUT_MS: Final = 10_000
_DAY_SECONDS: Final = 86_400

# The client's own types are not annotated.
_RULES: Any = BucketRetentionRules
_TASK: Any = TaskCreateRequest
_TASK_CHANGE: Any = TaskUpdateRequest

_HOURLY: Final = (
    # Measurement, the fields' names, what an hour makes of a minute's values.
    ("minute", "_mean$|_std$", "mean"),
    ("minute", "_min$", "min"),
    ("minute", "_max$", "max"),
    ("minute", "_count$|_increase$|^samples|^messages$", "sum"),
    ("minute", "_first$", "first"),
    ("minute", "_last$", "last"),
    ("risk", "^risk_[0-9]+m$", "max"),
    ("risk", "^health_score$", "min"),
)


def hourly_flux(settings: InfluxInitSettings, name: str) -> str:
    """The task that makes an hour of its minutes, a quarter of an hour after it ended.

    By then late samples have corrected their rows (ten minutes). ``_mean`` and ``_std`` are means
    of the minutes' values.
    """
    target = f'to(bucket: "{settings.hourly_bucket}", org: "{settings.org}")'
    lines = [f'option task = {{name: "{name}", every: 1h, offset: 15m}}']
    for measurement, fields, function in _HOURLY:
        lines.append(
            f'from(bucket: "{settings.bucket}") |> range(start: -task.every)'
            f' |> filter(fn: (r) => r._measurement == "{measurement}" and r._field =~ /{fields}/)'
            f" |> aggregateWindow(every: 1h, fn: {function}, createEmpty: false,"
            f' timeSrc: "_start") |> {target}'
        )
    return "\n".join(lines)


def prepare(settings: InfluxInitSettings) -> dict[str, str]:
    """Make what is absent, mend what differs; returns what was done by name.

    Raises:
        ConfigError: when the organization is absent, a name is unusable, or the token may not.
        RigcanaryError: when InfluxDB cannot be reached.
    """
    for field in ("org", "bucket", "hourly_bucket"):
        if any(c in getattr(settings, field) for c in '"\\\n'):
            raise ConfigError(f'{field}: a name with ", \\ or a line break cannot be used')
    client: Any = InfluxDBClient(
        url=settings.url,
        token=settings.token.get_secret_value(),
        org=settings.org,
        timeout=TIMEOUT_MS,
    )
    try:
        return _prepare(client, settings)
    except InfluxDBError as error:
        status = getattr(error, "status", None)
        said = f"InfluxDB {settings.url}: {status} {error.message}"
        if status in (401, 403):
            raise ConfigError(
                f"{said}; token must be an all-access token of {settings.org}"
            ) from error
        raise RigcanaryError(said) from error
    except (HTTPError, OSError) as error:
        raise RigcanaryError(f"InfluxDB {settings.url} cannot be reached: {error}") from error
    finally:
        client.close()


def _prepare(client: Any, settings: InfluxInitSettings) -> dict[str, str]:
    found = client.organizations_api().find_organizations(org=settings.org)
    if not found:
        raise ConfigError(f"InfluxDB {settings.url} has no organization {settings.org}; make it")
    org_id = found[0].id
    done = {
        f"bucket {name}": _bucket(client, org_id, name, days)
        for name, days in (
            (settings.bucket, settings.retention_days),
            (settings.hourly_bucket, settings.hourly_retention_days),
        )
    }
    task = f"{settings.hourly_bucket} from {settings.bucket}"
    done[f"task {task}"] = _task(client, org_id, task, hourly_flux(settings, task))
    return done


def _bucket(client: Any, org_id: str, name: str, days: int) -> str:
    api = client.buckets_api()
    rules: Any = _RULES(type="expire", every_seconds=days * _DAY_SECONDS)
    bucket = api.find_bucket_by_name(name)
    if bucket is None:
        api.create_bucket(bucket_name=name, org_id=org_id, retention_rules=[rules])
        return "made"
    present = bucket.retention_rules[0].every_seconds if bucket.retention_rules else 0
    if present == rules.every_seconds:
        return "as it was"
    bucket.retention_rules = [rules]
    api.update_bucket(bucket)
    return f"retention changed from {present / _DAY_SECONDS:g} to {days} days (0: for ever)"


def _task(client: Any, org_id: str, name: str, flux: str) -> str:
    api = client.tasks_api()
    for task in api.find_tasks(name=name):
        if task.flux == flux:
            return "as it was"
        api.update_task_request(task.id, _TASK_CHANGE(flux=flux))
        return "changed"
    request = _TASK(org_id=org_id, flux=flux, status="active")
    api.create_task(task_create_request=request)
    return "made"
