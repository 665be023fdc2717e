"""Logs of a process: one line a record, to standard error."""

import logging
import sys
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
QUIET: Final = ("faust", "mode", "aiokafka", "kafka", "asyncio", "uvicorn.access", "absl")
"""Libraries that speak of every connection; of them only warnings are shown."""


def log_to_stderr(level: int = logging.INFO) -> None:
    """Set logging up once; libraries speak from warnings on."""
    logging.basicConfig(stream=sys.stderr, level=level, format=FORMAT)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
