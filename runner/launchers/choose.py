"""The launcher that a setting names."""

import importlib
from typing import Final

from contract.errors import ConfigError
from runner.launchers.base import Launcher
from runner.launchers.local import LocalLauncher
from runner.settings import RunnerSettings

LOCAL: Final = "local"


def make_launcher(settings: RunnerSettings) -> Launcher:
    """``local``, or what ``package.module:factory`` makes of the settings.

    Raises:
        ConfigError: when the setting names nothing that can be had.
    """
    if settings.launcher == LOCAL:
        return LocalLauncher(settings.checkpoint_grace_seconds)
    module_name, colon, factory_name = settings.launcher.partition(":")
    if not module_name or not colon or not factory_name:
        raise ConfigError(
            f"launcher {settings.launcher!r} is not known; write {LOCAL} or package.module:factory"
        )
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"launcher {settings.launcher!r}: {error}; is it installed?") from error
    launcher: Launcher = factory(settings)
    return launcher
