"""Tasks that belong together."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from contract.errors import RigcanaryError

log = logging.getLogger(__name__)


async def together(*steps: Coroutine[Any, Any, Any]) -> None:
    """Run ``steps`` side by side; when one fails the others are cancelled and its error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except* RigcanaryError as errors:
        failure = errors.exceptions[0]
    else:
        return
    raise failure


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a coroutine beside the block and end it with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                log.debug("a companion ended with %r", result)
