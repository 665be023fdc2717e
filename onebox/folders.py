"""Folders of the demo: its state, its logs, its report."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from contract.errors import ConfigError, RigcanaryError
from onebox.logs import quiet_libraries

_KEPT: Final = "kept"
"""A file in the temporary state folder that says it must not be removed."""


def check_report_folder(folder: Path | None) -> None:
    """Find out now, not after four minutes."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--report {folder}: cannot make it: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--report {folder}: cannot write there")


@contextlib.contextmanager
def state_folder(folder: Path | None, print_line: Callable[[str], None]) -> Iterator[Path]:
    """The folder asked for, which must be empty, or a temporary one, kept after a failure."""
    if folder is not None:
        _take_empty(folder)
        yield folder
        return
    temporary = Path(tempfile.mkdtemp(prefix="rigcanary-demo-"))
    try:
        yield temporary
    except RigcanaryError:
        if any((temporary / "log").glob("*.log")):
            print_line(f"logs kept in {keep(temporary)}")
        raise
    finally:
        if not (temporary / _KEPT).exists():
            remove(temporary)


def keep(folder: Path) -> Path:
    """Keep a temporary state folder; returns where its logs are."""
    (folder / _KEPT).touch()
    return folder / "log"


def remove(folder: Path) -> None:
    """Remove a folder of our making; what a killed child still writes there may stay."""
    shutil.rmtree(folder, ignore_errors=True)


def _take_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--state {folder}: cannot use it: {error.strerror}") from error
    if not empty:
        raise ConfigError(
            f"--state {folder} is not empty; the demo starts from nothing, give it a new folder"
        )


@contextlib.contextmanager
def log_file(state: Path) -> Iterator[None]:
    """Log to a file beside the children's: the terminal belongs to the view."""
    (state / "log").mkdir(exist_ok=True)
    handler = logging.FileHandler(state / "log" / "demo.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger("onebox").setLevel(logging.INFO)
    quiet_libraries()
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
