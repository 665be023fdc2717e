"""How much of a run's time was kept: goodput. Pure."""

from dataclasses import dataclass, field


@dataclass
class Account:
    """Seconds spent on steps, kept once a checkpoint holds them or the run is over."""

    kept_seconds: float = 0.0
    lost_seconds: float = 0.0
    _open: list[tuple[int, float]] = field(default_factory=list)

    def worked(self, step: int, seconds: float) -> None:
        """``seconds`` were spent on steps up to ``step``."""
        self._open.append((step, seconds))

    def committed(self, step: int) -> None:
        """A checkpoint holds all up to ``step``."""
        self.kept_seconds += sum(s for at, s in self._open if at <= step)
        self._open = [(at, s) for at, s in self._open if at > step]

    def rolled_back(self) -> None:
        """A new generation begins from the last checkpoint: what is not in it is lost."""
        self.lost_seconds += sum(s for _, s in self._open)
        self._open = []

    def goodput(self, wall_seconds: float) -> float:
        """Share of wall time spent on steps that were kept, open ones counted as kept."""
        if wall_seconds <= 0:
            return 0.0
        return (self.kept_seconds + sum(s for _, s in self._open)) / wall_seconds
