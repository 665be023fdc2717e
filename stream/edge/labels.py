"""What really happened to cards: ``failures.csv`` below the state folder (contracts section 4)."""

import csv
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from contract.errors import ConfigError, RigcanaryError
from contract.message import MAX_TEXT
from contract.times import rfc3339

FILE: Final = "failures.csv"
HEADER: Final = ("device", "failed_at", "kind")
_KIND = re.compile(r"[^\x00-\x1f\x7f]{0,64}")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_MIN_MS: Final = 946_684_800_000  # 2000-01-01
AHEAD_MS: Final = 300_000


@dataclass(frozen=True)
class Failure:
    """One label; ``failed_ms`` is Unix milliseconds UTC."""

    device: str
    failed_ms: int
    kind: str


def parse_time(text: str) -> int:
    """RFC 3339 or Unix seconds → Unix milliseconds UTC.

    Raises:
        ConfigError: when it is neither, lacks an offset or lies before the year 2000.
    """
    text = text.strip()
    try:
        if _NUMBER.fullmatch(text):
            at_ms = round(float(text) * 1000)
        else:
            at = datetime.fromisoformat(text)
            if at.tzinfo is None:
                raise ConfigError(f"{text!r} has no UTC offset; write for example {text}Z")
            at_ms = round(at.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{text!r} is no time; write RFC 3339 (2026-01-01T12:00:00Z) or Unix seconds"
        ) from error
    if not _MIN_MS <= at_ms < 10**14:
        raise ConfigError(f"{text!r} is not a time of this century; Unix time is in seconds")
    return at_ms


def check(device: str, at_ms: int, kind: str, now_ms: int) -> Failure:
    """A valid label.

    Raises:
        ConfigError: naming what is wrong.
    """
    if not 0 < len(device) <= MAX_TEXT or not device.isprintable():
        raise ConfigError(f"DEVICE must be 1 to {MAX_TEXT} printable characters")
    if _KIND.fullmatch(kind) is None:
        raise ConfigError("--kind must be at most 64 characters on one line")
    if at_ms > now_ms + AHEAD_MS:
        raise ConfigError(f"--at {rfc3339(at_ms)} lies in the future")
    return Failure(device, at_ms, kind)


def read(path: Path) -> list[Failure]:
    """The labels of a ``failures.csv``; none when there is no such file.

    Raises:
        ConfigError: when the file is not one.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not {"device", "failed_at"} <= set(rows.fieldnames or ()):
                raise ConfigError(f"{path}: the first line must be {','.join(HEADER)}")
            found = []
            for row in rows:
                if not row.get("device") or not row.get("failed_at"):
                    raise ConfigError(
                        f"{path} line {rows.line_num}: device or failed_at is missing"
                    )
                at_ms = parse_time(row["failed_at"])
                found.append(Failure(row["device"], at_ms, row.get("kind") or ""))
            return found
    except FileNotFoundError:
        return []
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error


def write(path: Path, failures: Iterable[Failure]) -> None:
    """Write a ``failures.csv`` in one step: a crash leaves the old one or the new one.

    Raises:
        RigcanaryError: when it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(HEADER)
            table.writerows((f.device, rfc3339(f.failed_ms), f.kind) for f in failures)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RigcanaryError(f"{path}: cannot write it: {error.strerror}") from error


def record(state: Path, failure: Failure, *, replace: bool = False) -> bool:
    """Add a label to ``state / failures.csv``; False when exactly that was there already.

    Raises:
        ConfigError: when the device has another label and ``replace`` is not set.
        RigcanaryError: when the file cannot be written.
    """
    path = state / FILE
    known = read(path)
    if failure in known:
        return False
    others = [f for f in known if f.device == failure.device]
    if others and not replace:
        old = others[0]
        raise ConfigError(
            f"{failure.device} has failed at {rfc3339(old.failed_ms)} ({old.kind or 'no kind'}) "
            f"by {path}; --replace puts the new label in its place"
        )
    write(path, [*(f for f in known if f.device != failure.device), failure])
    return True
