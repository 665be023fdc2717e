"""Log files of the children: bounded on disk, the last lines in memory for error messages."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 8 * 1024 * 1024
"""A log file is moved to ``NAME.log.1`` at this size, so a child owns at most twice as much."""
_MAX_LINE: Final = 16 * 1024
_CHUNK: Final = 64 * 1024

_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b|\b(ERROR|CRITICAL)\b")

Echo = Callable[[str, str], None]
"""Called with (child's name, line) for every line of output."""


def quiet_libraries() -> None:
    """Keep this process's libraries from logging what is said better elsewhere.

    httpx logs every question whether a part is up, aiokafka every fetch from a broker that is
    being started afresh.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class ChildLog:
    """Writes a child's output to ``folder/name.log`` and remembers its last lines."""

    def __init__(self, folder: Path, name: str, echo: Echo | None = None) -> None:
        self.name = name
        self.path = folder / f"{name}.log"
        self.last: deque[str] = deque(maxlen=40)
        self.lines = 0
        self._echo = echo
        self._file = self.path.open("ab")

    def write(self, line: bytes) -> None:
        """Take one line, without its line end."""
        if self._file.tell() + len(line) > MAX_BYTES:
            self._file.close()
            self.path.replace(self.path.with_suffix(".log.1"))
            self._file = self.path.open("ab")
        self._file.write(line + b"\n")
        self._file.flush()
        text = line.decode("utf-8", "replace").rstrip()
        self.lines += 1
        if text:
            self.last.append(text)
            if self._echo is not None:
                self._echo(self.name, text)

    async def pump(self, stream: asyncio.StreamReader) -> None:
        """Read ``stream`` to its end; lines longer than 16 KiB are cut into pieces."""
        rest = b""
        while chunk := await stream.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._cut(line)
            if len(rest) > _MAX_LINE:
                self._cut(rest)
                rest = b""
        if rest:
            self._cut(rest)

    def _cut(self, line: bytes) -> None:
        for start in range(0, max(len(line), 1), _MAX_LINE):
            self.write(line[start : start + _MAX_LINE])

    def reason(self) -> str:
        """The line that most likely says why the child ended.

        Its own one-line error if it printed one, else the last line that speaks of an error,
        else the last line.
        """
        for line in reversed(self.last):
            if line.startswith("rigcanary: "):
                return line.removeprefix("rigcanary: ")
        for line in reversed(self.last):
            if _ERROR.search(line):
                return line
        return self.last[-1] if self.last else "it printed nothing"

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()
