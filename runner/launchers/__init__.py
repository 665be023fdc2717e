"""Ways to run a job's processes on a node: one file and one line in ``LAUNCHERS`` each."""

from typing import Final

LAUNCHERS: Final[dict[str, str]] = {"local": "runner.launchers.local:LocalLauncher"}
"""Name → ``module:class``, imported when a runner is told to use it."""
