"""A policy as TOML: read, checked, and every complaint with its file and line."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from contract.decision import CAUSES
from contract.errors import ConfigError
from contract.topics import is_name
from stream.budget import MINUTE_MS, BudgetPolicy
from stream.policy import Limits, ModelPolicy, Policy, Silence

DEFAULT: Final = Path(__file__).with_name("policy_default.toml")
MAX_BYTES: Final = 1 << 20
_TABLES: Final = ("decision", "budget", "limits", "models", "sites", "silences")
_SCORINGS: Final = ("raise_scorings", "of_scorings", "clear_ratio")
_DECISION: Final[Mapping[str, tuple[float, float]]] = {
    "raise_scorings": (1, 60),
    "of_scorings": (1, 60),
    "clear_ratio": (0, 1),
    "calm_minutes": (1, 44_640),
    "probation_load_minutes": (1, 44_640),
    "load_utilization_ratio": (0, 1),
    "load_power_watts": (0, 1_500),
    "repeat_episodes": (2, 100),
    "repeat_days": (1, 365),
    "absent_days": (1, 365),
}
_BUDGET: Final[Mapping[str, tuple[float, float]]] = {
    "window_minutes": (1, 1_440),
    "window_devices": (0, 100_000),
    "window_ratio": (0, 1),
    "open_devices": (0, 100_000),
    "open_ratio": (0, 1),
    "calm_minutes": (1, 44_640),
}
_LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature_celsius": (30, 150),
    "temperature_samples": (1, 1_000),
    "runaway_celsius_per_second": (0.01, 20),
    "runaway_floor_celsius": (0, 150),
    "runaway_samples": (1, 1_000),
    "ripple_volts": (0.001, 10),
    "ripple_samples": (1, 1_000),
    "fan_stopped_rpm": (0, 30_000),
    "fan_stopped_duty_ratio": (0, 1.2),
    "fan_stopped_utilization_ratio": (0, 1),
    "fan_stopped_samples": (1, 1_000),
    "lost_samples": (1, 1_000),
    "unresponsive_samples": (1, 1_000),
}
"""Keys of each table with what is sensible, inclusive. A name that ends in ``_samples``,
``_scorings``, ``_minutes``, ``_days``, ``_devices`` or ``_episodes`` is a whole number."""
_WHOLE: Final = re.compile(r".*_(samples|scorings|minutes|days|devices|episodes)")


class _Source:
    """The file's text, for naming the line of a complaint."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = text.splitlines()

    def error(
        self, message: str, table: str, key: str | None = None, number: int = 0
    ) -> ConfigError:
        """The complaint about ``key`` of ``table``; ``number`` counts tables of the same name."""
        line = self._line(table, key, number)
        where = f" line {line}" if line else ""
        name = f"[{table}] {key}" if key and table else (key or f"[{table}]")
        return ConfigError(f"policy {self._name}{where}: {name}: {message}")

    def _line(self, table: str, key: str | None, number: int) -> int:
        current, seen, header = "", -1, 0
        for at, raw in enumerate(self._lines, 1):
            text = raw.strip()
            match = re.match(r"\[\[?\s*(.+?)\s*\]\]?\s*(#.*)?$", text)
            if match:
                current = _plain(match[1])
                if current == _plain(table):
                    seen += 1
                    header = at if seen == number else header
                elif not header and key is None and current.startswith(f"{_plain(table)}."):
                    return at
                continue
            if key is None or "=" not in text or text.startswith("#"):
                continue
            name = _plain(text.partition("=")[0])
            inside = current == _plain(table) and seen == number
            if (inside or not table) and name == key:
                return at
            if not current and name == f"{_plain(table)}.{key}":  # a dotted key
                return at
        return header


def _plain(name: str) -> str:
    return name.replace('"', "").replace("'", "").replace(" ", "")


def read(path: Path | None = None) -> Policy:
    """The policy of a file over the defaults; without a file, the defaults.

    Raises:
        ConfigError: one line naming the file, the line, the key and what is allowed.
    """
    default = parse(DEFAULT.read_text(encoding="utf-8"), DEFAULT.name, Policy())
    if path is None:
        return default
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise ConfigError(f"policy {path}: cannot read it: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"policy {path}: not text in UTF-8") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"policy {path}: over {MAX_BYTES} bytes; a policy is a page or two")
    return parse(text, str(path), default)


def parse(text: str, name: str, base: Policy) -> Policy:
    """The policy of a text over ``base``; ``name`` stands in complaints.

    Raises:
        ConfigError: one line naming the line, the key and what is allowed.
    """
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"policy {name}: not TOML: {error}") from error
    source = _Source(name, text)
    for table in value:
        if table not in _TABLES:
            known = ", ".join(_TABLES)
            raise (
                source.error(f"no such table; known are {known}", "", table)
                if not isinstance(value[table], dict | list)
                else source.error(f"no such table; known are {known}", table)
            )
    decision = _decision(source, _table(source, value, "decision"), base)
    limits = _limits(source, _table(source, value, "limits"), "limits", base.limits)
    policy = replace(
        base,
        **decision,
        limits=limits,
        budget=_budget(source, _table(source, value, "budget"), base.budget),
        dry_run_sites=base.dry_run_sites | _dry_run(source, _table(source, value, "sites")),
        silences=base.silences + _silences(source, value.get("silences", [])),
    )
    return replace(policy, models=_models(source, value, policy, base))


def _table(source: _Source, value: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = value.get(name, {})
    if not isinstance(table, dict):
        raise source.error(f"must be a table, [{name}]", "", name)
    return table


def _numbers(
    source: _Source,
    table: Mapping[str, Any],
    where: str,
    known: Mapping[str, tuple[float, float]],
    also: tuple[str, ...] = (),
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, number in table.items():
        if key in also:
            continue
        if key not in known:
            names = ", ".join((*known, *also))
            raise source.error(f"no such key; known are {names}", where, key)
        low, high = known[key]
        whole = _WHOLE.fullmatch(key) is not None
        right = type(number) is int or (type(number) is float and not whole)
        if not right or not low <= number <= high:
            kind = "a whole number" if whole else "a number"
            raise source.error(
                f"must be {kind} from {low:g} to {high:g}, not {number!r:.40}", where, key
            )
        found[key] = number if whole else float(number)
    return found


def _scorings(source: _Source, where: str, raise_scorings: int, of_scorings: int) -> None:
    if raise_scorings > of_scorings:
        message = f"raise_scorings ({raise_scorings}) must not be over of_scorings ({of_scorings})"
        raise source.error(message, where, "raise_scorings")


def _decision(source: _Source, table: dict[str, Any], base: Policy) -> dict[str, Any]:
    found = _numbers(source, table, "decision", _DECISION, ("serves_on_probation",))
    if "serves_on_probation" in table:
        causes = table["serves_on_probation"]
        if not isinstance(causes, list) or any(c not in CAUSES for c in causes):
            message = f"must be a list of {', '.join(CAUSES)}"
            raise source.error(message, "decision", "serves_on_probation")
        found["serves_on_probation"] = tuple(causes)
    _scorings(
        source,
        "decision",
        found.get("raise_scorings", base.raise_scorings),
        found.get("of_scorings", base.of_scorings),
    )
    return found


def _budget(source: _Source, table: dict[str, Any], base: BudgetPolicy) -> BudgetPolicy:
    found = _numbers(source, table, "budget", _BUDGET)
    for minutes, ms in (("window_minutes", "window_ms"), ("calm_minutes", "calm_ms")):
        if minutes in found:
            found[ms] = found.pop(minutes) * MINUTE_MS
    return replace(base, **found)


def _limits(source: _Source, table: dict[str, Any], where: str, base: Limits) -> Limits:
    return replace(base, **_numbers(source, table, where, _LIMITS))


def _models(
    source: _Source, value: Mapping[str, Any], policy: Policy, base: Policy
) -> dict[str, ModelPolicy]:
    """Tables of ``base`` keep what they say; a general number that changed reaches the rest."""
    changed = {f.name for f in fields(Limits) if f.name in value.get("limits", {})}
    general = {name: getattr(policy.limits, name) for name in changed - {"temperature_celsius"}}
    scorings = {
        name: getattr(policy, name) for name in _SCORINGS if name in value.get("decision", {})
    }
    models = {
        name: replace(own, limits=replace(own.limits, **general), **scorings)
        for name, own in base.models.items()
    }
    for name, table in _table(source, value, "models").items():
        where = f"models.{name}"
        if not isinstance(table, dict):
            raise source.error('must be a table, [models."NAME"]', "models", name)
        known = {**_LIMITS, **{key: _DECISION[key] for key in _SCORINGS}}
        found = _numbers(source, table, where, known)
        own = models.get(name.lower()) or ModelPolicy(
            policy.limits, policy.raise_scorings, policy.of_scorings, policy.clear_ratio
        )
        mine = {key: found.pop(key) for key in _SCORINGS if key in found}
        own = replace(own, limits=replace(own.limits, **found), **mine)
        _scorings(source, where, own.raise_scorings, own.of_scorings)
        models[name.lower()] = own
    return models


def _dry_run(source: _Source, table: dict[str, Any]) -> frozenset[str]:
    sites = set()
    for site, entry in table.items():
        where = f"sites.{site}"
        if not isinstance(entry, dict) or not is_name(site):
            raise source.error('must be a table [sites."NAME"] of a site\'s name', "sites", site)
        for key, wish in entry.items():
            if key != "dry_run" or not isinstance(wish, bool):
                raise source.error("only dry_run = true or false is known here", where, key)
            if wish:
                sites.add(site)
    return frozenset(sites)


def _silences(source: _Source, value: Any) -> tuple[Silence, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise source.error("write each as a table of its own: [[silences]]", "", "silences")
    found = []
    for number, entry in enumerate(value):
        for key in entry:
            if key not in ("site", "node", "device", "from", "until", "reason"):
                known = "site, node, device, from, until, reason"
                raise source.error(f"no such key; known are {known}", "silences", key, number)
        times = []
        for key in ("from", "until"):
            at = entry.get(key)
            if not isinstance(at, datetime) or at.tzinfo is None:
                message = f"{key} must be a time with an offset, like 2026-03-01T20:00:00Z"
                raise source.error(message, "silences", key if key in entry else None, number)
            times.append(round(at.timestamp() * 1000))
        if times[0] >= times[1]:
            raise source.error("must be later than from", "silences", "until", number)
        names = {}
        for key in ("site", "node", "device", "reason"):
            text = entry.get(key, "" if key == "reason" else "*")
            if not isinstance(text, str) or len(text) > 256:
                raise source.error(
                    "must be text of at most 256 characters", "silences", key, number
                )
            names[key] = text
        found.append(Silence(times[0], times[1], **names))
    return tuple(found)
