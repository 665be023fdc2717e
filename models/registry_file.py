"""``registry.json`` of a model registry: which version is champion, which challenger, and why."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from contract.errors import ConfigError

SCHEMA: Final = "rigcanary.registry/1"
FILE: Final = "registry.json"
VERSIONS: Final = "versions"


@dataclass(frozen=True, slots=True)
class State:
    """What the file says; ``history`` is every change, oldest first."""

    champion: str | None = None
    challenger: str | None = None
    history: tuple[dict[str, Any], ...] = field(default=())


def read_state(folder: Path) -> State:
    """The registry's state; of a folder without the file, an empty one.

    Raises:
        ConfigError: when the file cannot be read.
    """
    path = folder / FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return State()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: not a model registry of {SCHEMA}")
    return State(value.get("champion"), value.get("challenger"), tuple(value.get("history", ())))


def write_state(folder: Path, state: State) -> None:
    """Replace the file at once: a reader sees the old state or the new one.

    Raises:
        ConfigError: when it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(state)}, indent=1, ensure_ascii=False) + "\n"
    try:
        handle, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(folder / FILE)
    except OSError as error:
        raise ConfigError(f"{folder / FILE}: cannot write it: {error}") from error


def champion_folder(folder: Path) -> Path | None:
    """The champion's model folder where ``folder`` is a registry; None where it is none.

    Raises:
        ConfigError: when the registry has no champion yet.
    """
    if not (folder / FILE).is_file():
        return None
    champion = read_state(folder).champion
    if champion is None:
        raise ConfigError(
            f"registry {folder}: has no champion; `rigcanary models promote VERSION "
            f"--registry {folder}`"
        )
    return folder / VERSIONS / champion
