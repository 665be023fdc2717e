"""The table of sources: name → ``module:Class``, imported when used.

A new source is one module and one line here; the contract tests run over this table.
"""

import importlib
from typing import TYPE_CHECKING, Final, cast

from agents.source import Source
from contract.errors import ConfigError

if TYPE_CHECKING:
    from agents.settings import AgentSettings

SOURCES: Final[dict[str, str]] = {
    "hwmon": "agents.sources.hwmon:HwmonSource",
    "iio": "agents.sources.iio:IioSource",
    "ipmi": "agents.sources.ipmi:IpmiSource",
    "kernel_log": "agents.sources.kernel_log:KernelLogSource",
    "nvml": "agents.sources.nvml:NvmlSource",
    "nvidia_smi": "agents.sources.nvidia_smi:NvidiaSmiSource",
    "replay": "agents.sources.replay:ReplaySource",
    "sim": "agents.sources.sim:SimSource",
    "tenstorrent": "agents.sources.tenstorrent:TenstorrentSource",
}

SIMULATED: Final = frozenset(("sim", "replay"))
"""Sources that play a rig back; they touch no device, and nothing in them can hang."""


def open_source(name: str, settings: "AgentSettings") -> Source:
    """Import and build the source called ``name``; its class takes the agent's settings.

    Raises:
        ConfigError: there is no such source, or the settings do not suit it.
    """
    target = SOURCES.get(name)
    if target is None:
        raise ConfigError(f"source {name!r} is not known; known are: {', '.join(sorted(SOURCES))}")
    module, _, class_name = target.partition(":")
    return cast(Source, getattr(importlib.import_module(module), class_name)(settings))
