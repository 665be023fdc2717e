"""JSON of what orjson has read, however deeply nested.

orjson reads 1,024 levels and writes 254; Python's encoder gives up near its recursion limit.
"""

from typing import Any

import orjson


def dumps(value: Any) -> bytes:
    """``value``, made by ``orjson.loads``, as JSON bytes."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return _dumps_deep(value)


def _dumps_deep(value: Any) -> bytes:
    """The same without recursion; bytes on the stack are text to write, all else is a value."""
    written: list[bytes] = []
    stack: list[Any] = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, bytes):
            written.append(top)
        elif isinstance(top, list):
            stack.append(b"]")
            for place in range(len(top) - 1, -1, -1):
                stack += (top[place], b"," if place else b"")
            stack.append(b"[")
        elif isinstance(top, dict):
            stack.append(b"}")
            for place, key in reversed(list(enumerate(top))):
                stack += (top[key], (b"," if place else b"") + orjson.dumps(key) + b":")
            stack.append(b"{")
        else:
            written.append(orjson.dumps(top))
    return b"".join(written)
