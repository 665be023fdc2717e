"""Checkpoints of a run of several workers: committed whole, verified, with a way back.

Workers write their files into a staging folder; when all of them are there, the supervisor
writes a manifest with their digests beside them and renames the folder. A checkpoint is
``ckpt-STEP-gGENERATION``: it exists when it is complete, and never changes.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runner.trainer.checkpoint import sync_folder

log = logging.getLogger("rigcanary.trainer")
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"ckpt-(\d{12})-g(\d{6})")
_STAGING: Final = ".ckpt-*.tmp"
_ASIDE: Final = ".damaged"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Written:
    """A file that a worker has written and synced: its name in the folder and its SHA-256."""

    name: str
    sha256: str


@dataclass(frozen=True, order=True)
class Committed:
    """A checkpoint that is complete."""

    step: int
    generation: int
    path: Path = field(compare=False)
    meta: Mapping[str, Any] = field(compare=False, default_factory=dict)


class CheckpointManager:
    """Saves every ``save_interval`` steps, keeps the newest ``keep_last``.

    ``failure_threshold``: when that many generations in a row started from the same checkpoint
    and ended without a newer one, it is set aside and the one before it is used: a state that
    kills whoever loads it must not hold a run for ever. The oldest one is never set aside so.

    One process at a time uses a folder; making the manager removes what a write that was cut
    short has left.
    """

    def __init__(
        self,
        folder: Path,
        save_interval: int = 500,
        keep_last: int = 3,
        failure_threshold: int = 2,
    ) -> None:
        if min(save_interval, keep_last, failure_threshold) < 1:
            raise ValueError("save_interval, keep_last and failure_threshold are at least 1")
        self.folder = folder
        self.save_interval = save_interval
        self._keep_last = keep_last
        self._failure_threshold = failure_threshold
        self._failures = 0
        self._failed_at: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.remove_leaked()

    def remove_leaked(self) -> None:
        """Remove staging folders; nobody may be writing."""
        for leaked in self.folder.glob(_STAGING):
            shutil.rmtree(leaked, ignore_errors=True)

    def all(self) -> list[Committed]:
        """Ascending, unverified."""
        found = []
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                found.append(Committed(int(match[1]), int(match[2]), path))
        return sorted(found)

    def next_generation(self) -> int:
        """One above any that has left a trace here."""
        return max((c.generation for c in self.all()), default=0) + 1

    def staging(self, step: int, generation: int) -> Path:
        """The folder that workers write into."""
        return staging_folder(self.folder, step, generation)

    def commit(
        self, step: int, generation: int, files: Sequence[Written], meta: Mapping[str, Any]
    ) -> Committed:
        """Make a staged checkpoint the newest; on return it is on disk. Old ones go.

        Raises:
            OSError: when it cannot be; those before it are untouched then.
        """
        staged = self.staging(step, generation)
        body = {"step": step, "files": {f.name: f.sha256 for f in files}, "meta": dict(meta)}
        text = json.dumps(body, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        with (staged / MANIFEST).open("w", encoding="utf-8") as file:
            file.write(f"{digest}\n{text}")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(staged)
        final = self.folder / f"ckpt-{step:012d}-g{generation:06d}"
        staged.rename(final)
        sync_folder(self.folder)
        for old in self.all()[: -self._keep_last]:
            self._remove(old.path)
        return Committed(step, generation, final, meta)

    def newest(self) -> Committed | None:
        """The newest whole one; damaged ones on the way are set aside (the last one is kept)."""
        for candidate in reversed(self.all()):
            try:
                meta = verify(candidate)
            except (OSError, ValueError) as error:
                log.warning("%s is damaged (%s): the one before it", candidate.path, error)
                self._set_aside(candidate.path)
                continue
            return Committed(candidate.step, candidate.generation, candidate.path, meta)
        return None

    def generation_failed(self, started_from: Committed | None) -> None:
        """A generation ended by a failure and committed nothing newer than what it began with."""
        path = started_from.path if started_from is not None else None
        self._failures = self._failures + 1 if path == self._failed_at else 1
        self._failed_at = path
        if started_from is None or self._failures < self._failure_threshold:
            return
        if self.all() and self.all()[0].path != path:
            log.warning(
                "%s: %d starts from it failed; the one before it", started_from.path, self._failures
            )
            self._set_aside(started_from.path)
        self._failures, self._failed_at = 0, None

    def _set_aside(self, path: Path) -> None:
        for older in self.folder.glob(f"*{_ASIDE}"):
            shutil.rmtree(older, ignore_errors=True)
        path.rename(path.with_name(path.name + _ASIDE))
        sync_folder(self.folder)

    def _remove(self, path: Path) -> None:
        # Renamed first: a removal that is cut short must not leave a checkpoint with holes.
        staged = path.with_name(f".{path.name}.tmp")
        path.rename(staged)
        shutil.rmtree(staged, ignore_errors=True)


def staging_folder(folder: Path, step: int, generation: int) -> Path:
    """Where the workers of a generation put their files of a step."""
    return folder / f".ckpt-{step:012d}-g{generation:06d}.tmp"


def verify(checkpoint: Committed) -> Mapping[str, Any]:
    """Its meta, when manifest and files are what was committed.

    Raises:
        ValueError: when they are not.
        OSError: when one cannot be read.
    """
    digest, newline, text = (
        (checkpoint.path / MANIFEST).read_bytes().decode("utf-8", "replace").partition("\n")
    )
    if not newline or hashlib.sha256(text.encode()).hexdigest() != digest:
        raise ValueError(f"{MANIFEST} is not what was written")
    body = json.loads(text)
    if body["step"] != checkpoint.step:
        raise ValueError("it is of another step than its name says")
    for name, wanted in body["files"].items():
        if file_digest(checkpoint.path / name) != wanted:
            raise ValueError(f"{name} is not what was written")
    meta: Mapping[str, Any] = body["meta"]
    return meta


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
