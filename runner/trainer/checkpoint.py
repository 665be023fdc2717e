"""Checkpoints that are either whole or not there.

A file ``ckpt-STEP`` is written beside its place, synced, renamed, and the folder synced. It
begins with a line that holds the SHA-256 of the rest, an ``npz`` without pickles; a file whose
sum does not agree is set aside on load and the one before it is used.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

log = logging.getLogger("rigcanary.trainer")
MAGIC: Final = b"rigcanary-checkpoint/1 "
_META: Final = "meta.json"
_NAME: Final = re.compile(r"ckpt-(\d{12})")
_TEMPORARY: Final = ".ckpt-*.tmp"
_DAMAGED: Final = ".damaged"

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """``arrays`` by name, and JSON-able ``meta``, after ``step`` steps."""

    step: int
    arrays: Arrays
    meta: Mapping[str, Any]


class CheckpointFolder:
    """The checkpoints of one job; one process at a time writes there."""

    def __init__(self, folder: Path, keep_last: int = 3) -> None:
        """Also removes what an interrupted write has left behind."""
        self._folder = folder
        self._keep_last = keep_last
        folder.mkdir(parents=True, exist_ok=True)
        for leaked in folder.glob(_TEMPORARY):
            leaked.unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, ascending."""
        names = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write one; when this returns it is on disk. Older ones than ``keep_last`` go.

        Raises:
            OSError: when it cannot be written; those before it are untouched then.
        """
        path = self._path(checkpoint.step)
        temporary = self._folder / f".{path.name}.{os.getpid()}.tmp"
        try:
            write_file(temporary, checkpoint)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self._folder)
        for step in self.steps()[: -self._keep_last]:
            self._path(step).unlink(missing_ok=True)
        return path

    def load_newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, None when there is none."""
        for step in reversed(self.steps()):
            path = self._path(step)
            try:
                return _decode(path.read_bytes(), step)
            except (OSError, ValueError) as error:
                log.warning("%s is damaged (%s); the one before it is used", path, error)
                self._set_aside(path)
        return None

    def _set_aside(self, path: Path) -> None:
        for older in self._folder.glob(f"*{_DAMAGED}"):
            older.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(path.name + _DAMAGED))

    def _path(self, step: int) -> Path:
        return self._folder / f"ckpt-{step:012d}"


def write_file(path: Path, checkpoint: Checkpoint) -> str:
    """Write one to a file of its own and sync it; the file's SHA-256."""
    body = _encode(checkpoint)
    head = MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n"
    digest = hashlib.sha256(head)
    digest.update(body)
    with path.open("wb") as file:
        file.write(head)
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def read_file(path: Path) -> Checkpoint:
    """What :func:`write_file` wrote; the step is the file's own.

    Raises:
        ValueError: when it is damaged.
        OSError: when it cannot be read.
    """
    return _decode(path.read_bytes(), None)


def _encode(checkpoint: Checkpoint) -> bytes:
    buffer = io.BytesIO()
    meta = json.dumps({**checkpoint.meta, "step": checkpoint.step}).encode()
    arrays = {_META: np.frombuffer(meta, np.uint8), **checkpoint.arrays}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _decode(data: bytes, step: int | None) -> Checkpoint:
    head, newline, body = data.partition(b"\n")
    if not newline or not head.startswith(MAGIC):
        raise ValueError("not a checkpoint")
    if hashlib.sha256(body).hexdigest().encode() != head[len(MAGIC) :]:
        raise ValueError("its checksum does not agree")
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    meta = json.loads(arrays.pop(_META).tobytes())
    own: int = meta.pop("step")
    if step is not None and own != step:
        raise ValueError("it is of another step than its name says")
    return Checkpoint(own, arrays, meta)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
