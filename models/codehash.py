"""A hash of what a module computes: its tokens without comments, docstrings and layout."""

import hashlib
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SKIPPED: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_hash(source: str) -> str:
    """Twelve hexadecimal digits; the same for sources that differ only in layout or comments.

    Trailing commas, kinds of quotes and docstrings do not count, so that a formatter does not
    part a model from its features.
    """
    digest = hashlib.sha256()
    line_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _SKIPPED:
            line_start = line_start or token.type in (tokenize.NEWLINE, tokenize.INDENT)
            continue
        docstring = token.type == tokenize.STRING and line_start
        line_start = False
        if docstring or token.string in (",", "(", ")"):
            continue
        text = token.string.strip("\"'") if token.type == tokenize.STRING else token.string
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()[:12]


def modules_hash(paths: Iterable[str], extra: tuple[str, ...] = ()) -> str:
    """The hash of modules' files and of names they depend on."""
    digest = hashlib.sha256("\n".join(extra).encode())
    for path in paths:
        digest.update(code_hash(Path(path).read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:12]
