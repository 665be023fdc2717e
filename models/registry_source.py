"""A registry as a running worker reads it: what serves now, and what may serve next."""

from pathlib import Path
from typing import Final, NamedTuple

from contract.errors import ConfigError
from models.card import read_model
from models.registry_file import FILE, VERSIONS, read_state
from models.serve import Predictor

_NEVER: Final = (-1, -1, -1)


class Versions(NamedTuple):
    """The registry's champion and challenger; None where there is none."""

    champion: str | None
    challenger: str | None


class RegistrySource:
    """Says when a registry's state changed, and loads its versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamp = _NEVER

    def changed(self) -> Versions | None:
        """What the registry says, or None when its file is the one of the last call.

        Raises:
            ConfigError: when the file cannot be read.
        """
        try:
            status = (self.folder / FILE).stat()
        except OSError as error:
            raise ConfigError(f"{self.folder / FILE}: cannot read it: {error.strerror}") from error
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp == self._stamp:
            return None
        state = read_state(self.folder)
        self._stamp = stamp
        return Versions(state.champion, state.challenger)

    def load(self, version: str) -> Predictor:
        """One of the versions.

        Raises:
            ConfigError: when it is not there or does not fit this program.
        """
        return Predictor(read_model(self.folder / VERSIONS / version))


def source_of(name_or_path: str | Path) -> RegistrySource | None:
    """The registry behind a model's name, or None where it is a model folder or ``default``."""
    folder = Path(name_or_path)
    return RegistrySource(folder) if (folder / FILE).is_file() else None
