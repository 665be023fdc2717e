"""A model folder: ``card.json``, ``weights.npz``, ``baselines.npz``. Numbers only, no pickles."""

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.errors import ConfigError, RigcanaryError
from models.features import FEATURES_VERSION
from models.registry_file import champion_folder
from models.walk import OperatingPoint, threshold_for
from models.windows import HORIZONS_MINUTES

CARD_SCHEMA: Final = "rigcanary.model/1"
DEFAULT: Final = Path(__file__).parent / "default"
SERVED: Final = "ensemble"


@dataclass(frozen=True, slots=True)
class Model:
    """A model folder, read: ``card`` is the JSON, arrays by name."""

    folder: Path
    card: dict[str, Any]
    weights: dict[str, npt.NDArray[Any]]
    baselines: dict[str, npt.NDArray[Any]]

    @property
    def version(self) -> str:
        """``ensemble-`` and twelve digits of the hash of all its numbers."""
        return str(self.card["version"])

    def threshold(self, policy: str, budget: float) -> float:
        """The threshold that kept within ``budget`` false alarms a device-day on validation.

        Within the card's ``budget_share`` of it, for a model that is to serve other fleets.
        """
        points = [
            OperatingPoint(p["false_alarms_per_device_day"], p["event_recall"], p["threshold"])
            for p in self.card["policies"][policy]["validation_curve"]
        ]
        return threshold_for(points, budget * self.card.get("budget_share", 1.0))


def calibrated(
    logits_BH: npt.NDArray[np.floating], calibration: dict[str, dict[str, float]]
) -> npt.NDArray[np.float64]:
    """Risks [B, H] of the network's logits: Platt's line, and no head under a shorter one's.

    A failure within 15 minutes is one within 60, so the heads must not contradict each other.
    """
    lines = [calibration[f"{h}m"] for h in HORIZONS_MINUTES]
    slope, intercept = (np.array([line[k] for line in lines]) for k in ("slope", "intercept"))
    odds = np.clip(np.nan_to_num(logits_BH.astype(np.float64)) * slope + intercept, -40, 40)
    return np.maximum.accumulate(1 / (1 + np.exp(-odds)), axis=1)


def version_of(weights: dict[str, npt.NDArray[Any]], baselines: dict[str, npt.NDArray[Any]]) -> str:
    """``ensemble-`` and a hash of the network's weights and of the trees."""
    digest = hashlib.sha256()
    for arrays in (weights, baselines):
        for name in sorted(arrays):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return f"{SERVED}-{digest.hexdigest()[:12]}"


def folder_of(name_or_path: str | Path) -> Path:
    """``default`` is the shipped model, a registry its champion, everything else a path."""
    if str(name_or_path) == "default":
        return DEFAULT
    return champion_folder(Path(name_or_path)) or Path(name_or_path)


def read_card(name_or_path: str | Path) -> dict[str, Any]:
    """The card of a model folder, also of one that this version cannot serve.

    Raises:
        ConfigError: when it is not there or cannot be read.
    """
    folder = folder_of(name_or_path)
    path = folder / "card.json"
    if not path.is_file():
        raise ConfigError(
            f"model {str(name_or_path)!r}: {path} is not there; give 'default' or a folder that "
            "`rigcanary train DATASET --out FOLDER` wrote"
        )
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    if not isinstance(card, dict) or card.get("schema") != CARD_SCHEMA:
        raise ConfigError(f"{path}: not a model card of {CARD_SCHEMA}")
    return card


def read_model(name_or_path: str | Path) -> Model:
    """Read a model folder.

    Raises:
        ConfigError: when it is not there, incomplete, or was trained on other features.
    """
    folder, card = folder_of(name_or_path), read_card(name_or_path)
    if card.get("features_version") != FEATURES_VERSION:
        raise ConfigError(
            f"model {folder}: trained on features {card.get('features_version')}, this version "
            f"computes {FEATURES_VERSION}; train it again"
        )
    weights = _read_arrays(folder / "weights.npz")
    baselines = _read_arrays(folder / "baselines.npz")
    if version_of(weights, baselines) != card.get("version"):
        raise ConfigError(
            f"model {folder}: weights.npz and baselines.npz are not those that card.json describes"
        )
    return Model(folder, card, weights, baselines)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error


def write_model(
    folder: Path,
    card: dict[str, Any],
    weights: dict[str, npt.NDArray[Any]],
    baselines: dict[str, npt.NDArray[Any]],
) -> None:
    """Write a model folder, the card last, so that a folder with a card is complete.

    Raises:
        ConfigError: when the folder cannot be written.
        RigcanaryError: when a weight is not finite; nothing is written.
    """
    bad = sorted(
        name for name, array in (weights | baselines).items() if not np.isfinite(array).all()
    )
    if bad:
        raise RigcanaryError(f"weights {bad[0]!r} are not finite, nothing was saved; train again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "card.json").unlink(missing_ok=True)
        np.savez_compressed(folder / "weights.npz", allow_pickle=False, **weights)
        np.savez_compressed(folder / "baselines.npz", allow_pickle=False, **baselines)
        text = json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        (folder / "card.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot write it: {error}") from error
