"""A registry of models in a folder: versions, champion and challenger, promote and roll back.

``FOLDER/versions/VERSION/`` is a model folder as ``rigcanary train`` writes it, with
``evaluation.json`` where it was judged on a set of its own; ``registry.json`` says which serves.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from contract.errors import ConfigError, RigcanaryError
from models.baseline import COMPONENTS
from models.card import SERVED, read_card, read_model
from models.registry_file import VERSIONS, State, read_state, write_state

BUDGETS: Final = (0.033, 0.003)
_EVALUATION: Final = "evaluation.json"


@dataclass(frozen=True, slots=True)
class Defeat:
    """A baseline that caught more failures than the model at the same budget."""

    baseline: str
    budget: float
    model_recall: float
    baseline_recall: float

    def __str__(self) -> str:
        return (
            f"{self.baseline} catches {self.baseline_recall:.2f} of the failures at "
            f"{self.budget:g} false alarms a device-day, the model {self.model_recall:.2f}"
        )


def recall_within(curve: list[dict[str, float]], budget: float) -> float:
    """The best event recall on a curve at no more than ``budget`` false alarms a device-day."""
    kept = (p["event_recall"] for p in curve if p["false_alarms_per_device_day"] <= budget)
    return max(kept, default=0.0)


def defeats(card: dict[str, Any], evaluation: dict[str, Any] | None = None) -> list[Defeat]:
    """Baselines that win at equal budget: on the evaluation's set, else on the validation's."""
    if evaluation is None:
        curves = {name: p["validation_curve"] for name, p in card["policies"].items()}
    else:
        curves = {p["name"]: p["curve"] for p in evaluation["policies"]}
    lost = []
    for budget in BUDGETS:
        own = recall_within(curves[SERVED], budget)
        for name, curve in curves.items():
            other = recall_within(curve, budget)
            if name not in (SERVED, *COMPONENTS) and other > own:
                lost.append(Defeat(name, budget, own, other))
    return lost


class Registry:
    """The registry in ``folder``; every change is recorded with its time, person and reason."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def state(self) -> State:
        """What ``registry.json`` says now."""
        return read_state(self.folder)

    def versions(self) -> list[str]:
        """All versions, by name."""
        root = self.folder / VERSIONS
        if not root.is_dir():
            return []
        return sorted(p.name for p in root.iterdir() if (p / "card.json").is_file())

    def evaluation(self, version: str) -> dict[str, Any] | None:
        """What ``evaluate`` said of a version, if it was asked."""
        path = self._folder(version) / _EVALUATION
        if not path.is_file():
            return None
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot read it: {error}") from error
        return value

    def defeats(self, version: str) -> list[Defeat]:
        """Baselines that beat a version at equal budget."""
        return defeats(read_card(self._folder(version)), self.evaluation(version))

    def register(
        self, model: Path, at: str, by: str, evaluation: dict[str, Any] | None = None
    ) -> str:
        """Copy a model folder in, as challenger; returns its version.

        Raises:
            ConfigError: when the folder is no model, or the registry cannot be written.
        """
        version = read_model(model).version
        if evaluation is not None and evaluation.get("model_version") != version:
            raise ConfigError(
                f"the evaluation is of {evaluation.get('model_version')}, the model is {version}"
            )
        with self._changing() as state:
            target = self.folder / VERSIONS / version
            arriving = target.with_name(f".{version}.arriving")
            try:
                if not target.is_dir():
                    shutil.rmtree(arriving, ignore_errors=True)
                    shutil.copytree(model, arriving)
                    arriving.rename(target)
                if evaluation is not None:
                    text = json.dumps(evaluation, indent=1, ensure_ascii=False) + "\n"
                    (target / _EVALUATION).write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"registry {self.folder}: cannot write it: {error}") from error
            waiting = state.challenger if version == state.champion else version
            self._record(
                replace(state, challenger=waiting),
                {"action": "register", "version": version, "at": at, "by": by},
            )
        return version

    def promote(self, version: str, at: str, by: str, override: str | None = None) -> list[Defeat]:
        """Make a version champion; returns what ``override`` (a reason) passed over.

        Raises:
            RigcanaryError: when a baseline wins at equal budget and there is no override.
            ConfigError: when there is no such version, or this program cannot serve it.
        """
        with self._changing() as state:
            if state.champion == version:
                raise ConfigError(f"{version} is the champion already")
            read_model(self._folder(version))  # what cannot be served is not made champion
            lost = self.defeats(version)
            if lost and not override:
                raise RigcanaryError(
                    f"{version} is not promoted: {'; '.join(map(str, lost))}. Serve the better "
                    "rule, train again, or give --override REASON, which is recorded"
                )
            entry: dict[str, Any] = {
                "action": "promote",
                "version": version,
                "before": state.champion,
                "at": at,
                "by": by,
            }
            if lost:
                entry |= {"override": override, "beaten_by": [str(d) for d in lost]}
            challenger = None if state.challenger == version else state.challenger
            self._record(replace(state, champion=version, challenger=challenger), entry)
        return lost

    def roll_back(self, at: str, by: str, reason: str = "") -> str:
        """Give the champion before the last promotion its place back; returns it.

        A second roll-back goes one further back, not forward again.

        Raises:
            RigcanaryError: when there was none before.
            ConfigError: when this version of the program cannot serve it.
        """
        with self._changing() as state:
            stack: list[str | None] = []
            for entry in state.history:
                if entry["action"] == "promote":
                    stack.append(entry["before"])
                elif entry["action"] == "rollback" and stack:
                    stack.pop()
            before = stack[-1] if stack else None
            if before is None:
                raise RigcanaryError(f"registry {self.folder}: no champion to go back to")
            read_model(self._folder(before))
            entry = {
                "action": "rollback",
                "version": before,
                "before": state.champion,
                "at": at,
                "by": by,
                "reason": reason,
            }
            self._record(replace(state, champion=before), entry)
        return before

    def _folder(self, version: str) -> Path:
        if version not in self.versions():
            known = ", ".join(self.versions()) or "none"
            raise ConfigError(f"registry {self.folder}: no version {version!r}; there are: {known}")
        return self.folder / VERSIONS / version

    def _record(self, state: State, entry: dict[str, Any]) -> None:
        write_state(self.folder, replace(state, history=(*state.history, entry)))

    @contextmanager
    def _changing(self) -> Iterator[State]:
        """One change at a time, also among processes."""
        try:
            (self.folder / VERSIONS).mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"--registry {self.folder}: cannot write it: {error}") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield read_state(self.folder)
