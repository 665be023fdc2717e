"""Settings of a process: defaults < TOML file < environment < command-line options.

pydantic-settings reads the sources; what it would accept in silence (a mistyped variable, a
file that is not there) is refused here.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError

from contract.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


def load(
    settings_class: type[S],
    *,
    process: str,
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> S:
    """Build the settings of ``process``.

    ``overrides`` come from command-line options; an entry that is None was not given.
    ``environment`` defaults to the process's own.

    Raises:
        ConfigError: naming the setting, variable or file that is wrong.
    """
    prefix = f"RIGCANARY_{process.upper().replace('-', '_')}_"
    values: dict[str, Any] = {}
    if config_file is not None:
        _merge(values, _read_toml(config_file))
    _merge(values, _read_environment(settings_class, prefix, environment or os.environ))
    _merge(values, {k: v for k, v in (overrides or {}).items() if v is not None})
    try:
        return settings_class.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, process, prefix, config_file)) from error


def show(settings: BaseModel) -> str:
    """What is in force, as indented JSON, secrets masked."""
    return settings.model_dump_json(indent=2)


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot read it: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from error


def _read_environment(
    settings_class: type[BaseModel], prefix: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    own: dict[str, str] = {}
    for name, value in environment.items():
        if not name.upper().startswith(prefix):
            continue
        path = name[len(prefix) :].lower().split("__")
        if _knows(settings_class, path):
            own[name.upper()] = value
        elif name.upper().endswith("_FILE") and _knows(
            settings_class, [*path[:-1], path[-1].removesuffix("_file")]
        ):
            own[name.upper().removesuffix("_FILE")] = _read_secret(name, value)
        else:
            known = ", ".join(sorted(settings_class.model_fields))
            raise ConfigError(f"environment variable {name} is not a setting; known are: {known}")
    if not own:
        return {}
    # Imported where it is needed: it is a sixth of an agent's start.
    from pydantic_settings import BaseSettings, EnvSettingsSource
    from pydantic_settings.exceptions import SettingsError

    reader = type(
        "Reader",
        (BaseSettings,),
        {
            "__annotations__": {k: f.annotation for k, f in settings_class.model_fields.items()},
            **dict(settings_class.model_fields.items()),
        },
    )
    source = EnvSettingsSource(
        cast(type[BaseSettings], reader),
        env_prefix=prefix,
        env_nested_delimiter="__",
        case_sensitive=False,
    )
    source.env_vars = {k.lower(): v for k, v in own.items()}
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(f"environment {prefix}…: {error}") from error


def _read_secret(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name}={path}: cannot read it: {error.strerror}") from error


def _knows(model: type[BaseModel], path: list[str]) -> bool:
    field = model.model_fields.get(path[0])
    if field is None:
        return False
    if len(path) == 1:
        return True
    candidates = (field.annotation, *get_args(field.annotation))
    nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return any(_knows(model_class, path[1:]) for model_class in nested)


def _explain(error: ValidationError, process: str, prefix: str, config_file: Path | None) -> str:
    parts = []
    for item in error.errors(include_input=False, include_url=False)[:5]:
        name = ".".join(str(p) for p in item["loc"])
        if item["type"] == "extra_forbidden":
            parts.append(f"{name}: no such setting")
        elif item["type"] == "missing":
            option = name.replace("_", "-").replace(".", "-")
            variable = prefix + name.upper().replace(".", "__")
            parts.append(f"{name} is needed (option --{option} or variable {variable})")
        else:
            message = item["msg"].removeprefix("Value error, ")
            parts.append(f"{name}: {message}" if name else message)
    where = f" ({config_file})" if config_file is not None else ""
    return f"{process} settings{where}: " + "; ".join(parts)
