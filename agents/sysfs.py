"""Small reads of Linux' sysfs, and of copies of it."""

import errno
import os
import re
from pathlib import Path
from typing import Final

_ABSENT: Final = (
    errno.ENOENT,
    errno.ENODATA,  # there is a sensor and it has no value now
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.EAGAIN,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
)
PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def read_text(path: Path) -> str | None:
    """The file's text without blanks around it; None where there is none.

    Raises:
        OSError: the device behind it answers with an error (EIO, ENODEV, …).
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return text or None


def read_int(path: Path) -> int | None:
    """The file's integer, decimal or 0x…; None where there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def read_float(path: Path) -> float | None:
    """The file's first number (``0.000598 0.0012`` gives the first); None where there is none."""
    text = read_text(path)
    try:
        return None if text is None else float(text.split()[0])
    except ValueError:
        return None


def follow(path: Path) -> Path:
    """``path``, or the folder it names where a copy keeps a link as a text file.

    Archives of sysfs that cannot hold links (git on some systems, some recordings) have a file
    with the link's target in its place.
    """
    if path.is_file() and path.stat().st_size < 1024:
        target = path.read_text(encoding="utf-8", errors="replace").strip()
        if target and "\n" not in target:
            return Path(os.path.normpath(path.parent / target))
    return path


def listdir(path: Path, prefix: str) -> list[Path]:
    """Entries of the folder whose name begins with ``prefix``, by number; none if it is absent."""
    try:
        names = [entry.name for entry in path.iterdir() if entry.name.startswith(prefix)]
    except OSError:
        return []
    return [path / name for name in sorted(names, key=_by_number)]


def pci_address_of(path: Path) -> str | None:
    """The PCI address in the real path of a device folder, lower case, domain of four digits."""
    found = PCI_ADDRESS.findall(str(Path(os.path.realpath(path))))
    return found[-1].lower() if found else None


def _by_number(name: str) -> tuple[str, int]:
    digits = re.search(r"(\d+)$", name)
    return (name[: digits.start()], int(digits[1])) if digits else (name, -1)
