"""Writes the settings files of the children. Only what TOML and JSON share is written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def dumps(values: Mapping[str, Any]) -> str:
    """TOML of plain values, lists of plain values, tables, and lists of tables."""
    return _table(values, ())


def _plain(value: Any) -> str:
    # TOML wants DEL escaped, JSON does not care; what JSON escapes, TOML reads.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    lines = [
        # Text, numbers, booleans and lists of them are spelt alike in JSON and TOML.
        f"{json.dumps(key)} = {_plain(value)}\n"
        for key, value in values.items()
        if not isinstance(value, Mapping) and not _is_tables(value)
    ]
    for key, value in values.items():
        name = ".".join(json.dumps(part) for part in (*path, key))
        if isinstance(value, Mapping):
            lines.append(f"[{name}]\n{_table(value, (*path, key))}")
        elif _is_tables(value):
            lines += [f"[[{name}]]\n{_table(item, (*path, key))}" for item in value]
    return "".join(lines)


def write(path: Path, values: Mapping[str, Any]) -> Path:
    """Write ``values`` to ``path`` (readable by the owner alone) and return it."""
    write_private(path, dumps(values))
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
