"""Writes ``docs/reference.md`` from the code: ``python docs/build_reference.py``.

Settings with their defaults, bounds and docstrings, metrics with their labels, Kafka topics with
what they keep. A test holds the page to what this file makes.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args
from unittest import mock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agents.settings import AgentSettings
from runner.edge.metrics import Metrics as RunnerMetrics
from runner.settings import RunnerSettings
from stream.bridge_settings import BridgeSettings
from stream.edge.bridge_metrics import BridgeMetrics
from stream.edge.influx_sink import SinkMetrics
from stream.edge.metrics import WorkerMetrics
from stream.influx_settings import InfluxInitSettings, InfluxSinkSettings
from stream.settings import WorkerSettings
from stream.topic_settings import RETENTION_MS, topic_config

PAGE: Final = Path(__file__).parent / "reference.md"
SETTINGS: Final[dict[str, type[BaseModel]]] = {
    "agent": AgentSettings,
    "bridge": BridgeSettings,
    "worker": WorkerSettings,
    "influx-sink": InfluxSinkSettings,
    "influx-init": InfluxInitSettings,
    "runner": RunnerSettings,
}
BOUNDS: Final = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Field → the docstring under it, of the class and those it inherits from."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def nested(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation, also of a tuple or an optional one."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = nested(inner)
        if found is not None:
            return found
    return None


def repeated(annotation: Any) -> bool:
    """Whether the setting is a list of tables."""
    return "tuple" in str(annotation) or "list" in str(annotation)


def default_of(field: FieldInfo) -> str:
    """The default as one would write it in TOML."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "–"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(repr(str(v)) for v in value)}]`".replace("'", '"')
    return f"`{value}`" if str(value) else '`""`'


def allowed(field: FieldInfo) -> str:
    """Bounds and choices."""
    choices = [a for a in get_args(field.annotation) if isinstance(a, str)]
    if choices:
        return ", ".join(f"`{c}`" for c in choices)
    words = []
    for limit in field.metadata:
        for name, sign in BOUNDS.items():
            value = getattr(limit, name, None)
            if value is not None:
                words.append(f"{sign} {value:,}".replace(",", " "))
    return ", ".join(words)


def settings_of_any_host(model: type[BaseModel]) -> list[str]:
    """:func:`settings_rows`, where this machine's name is ``HOST``."""
    with mock.patch("socket.gethostname", return_value="HOST"):
        return list(settings_rows(model))


def settings_rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Table rows of a model's settings, those of the tables inside it after their own."""
    texts = docstrings(model)
    for name, field in model.model_fields.items():
        inner = nested(field.annotation)
        path = prefix + name
        text = re.sub(r"``(.+?)``", r"`\1`", texts.get(name, "")).replace("|", "\\|")
        if inner is None:
            cells = (f"`{path}`", default_of(field), allowed(field), text)
            yield f"| {' | '.join(cells)} |"
            continue
        many = repeated(field.annotation)
        yield f"| `{'[[' if many else '['}{path}{']]' if many else ']'}` | | | {text} |"
        yield from settings_rows(inner, path + ".")


def metric_rows(registry: CollectorRegistry) -> Iterator[str]:
    """Table rows of the metrics of one process."""
    collectors = {
        metric._name: metric  # noqa: SLF001 - the library lists labels nowhere else
        for metric in registry._collector_to_names  # noqa: SLF001
        if isinstance(metric, MetricWrapperBase)
    }
    for name in sorted(collectors):
        metric = collectors[name]
        kind = metric._type  # noqa: SLF001
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001
        suffix = "_total" if kind == "counter" else ""
        yield f"| `{name}{suffix}` | {kind} | {labels} | {metric._documentation} |"  # noqa: SLF001


def page() -> str:
    """The whole page."""
    lines = [
        "<!-- made by `python docs/build_reference.py`; change the code, not this page -->",
        "# Reference: settings, metrics, topics",
        "",
        "A setting comes from its default, the TOML file of `--config`, the environment, or an",
        "option, the later over the earlier. In the environment the agent's `mqtt.host` is",
        "`RIGCANARY_AGENT_MQTT__HOST`; with `_FILE` at its end a variable names a file that holds",
        "the value (for secrets). An unknown setting or variable is refused.",
    ]
    for process, model in SETTINGS.items():
        lines += ["", f"## Settings of `rigcanary {process}`"]
        lines += [
            "| setting | default | allowed | |",
            "|---|---|---|---|",
            *settings_of_any_host(model),
        ]
    lines += [
        "",
        "## Metrics",
        "Those of each card and rig, and the agent's own, stand in [agents.md](agents.md)",
    ]
    lines[-1] += " and [grafana.md](grafana.md)."
    registries = {
        "bridge": BridgeMetrics().registry,
        "worker": WorkerMetrics().registry,
        "influx-sink": SinkMetrics().registry,
        "runner": RunnerMetrics().registry,
    }
    for process, registry in registries.items():
        lines += ["", f"### `rigcanary {process}`"]
        lines += ["| metric | kind | labels | |", "|---|---|---|---|", *metric_rows(registry)]
    lines += ["", "## Kafka topics", "Made with these settings where they are absent.", ""]
    lines += ["| topic | settings |", "|---|---|"]
    for topic in RETENTION_MS:
        config = topic_config(topic)
        words = ", ".join(f"`{key}={value}`" for key, value in sorted(config.items()))
        lines.append(f"| `{topic}` | {words} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else "docs/reference.md is old")
    PAGE.write_text(page(), encoding="utf-8")
