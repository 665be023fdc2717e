"""Where an agent keeps what must survive a restart."""

import os
from collections.abc import Mapping
from pathlib import Path

from agents.settings import AgentSettings

_PLAYED = frozenset({"sim", "replay"})


def state_folder(
    settings: AgentSettings, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """The folder of the settings, else systemd's ``$STATE_DIRECTORY``, else the user's own.

    An agent that only plays a rig back keeps nothing unless it is told to: None. So does one of a
    user without a home.
    """
    if settings.state is not None:
        return settings.state
    if set(settings.sources) <= _PLAYED:
        return None
    given = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    base = environment.get("XDG_STATE_HOME")
    if not base:
        home = environment.get("HOME")
        if not home:
            return None
        base = f"{home}/.local/state"
    return Path(base) / "rigcanary" / "agent" / settings.site / settings.node
