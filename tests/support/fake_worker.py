"""The real worker process with a predictor whose risk a test can foretell.

Risk is the mean core temperature of the window's last ten minutes over 100 °C: tests can say
exactly which minute raises it. Run as ``python fake_worker.py CONFIG.toml``.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contract.decision import Evidence
from contract.minute import COLUMN_INDEX
from rigcanary.config import load
from rigcanary.logs import log_to_stderr
from stream.edge import run
from stream.edge.shared import Predictor
from stream.settings import WorkerSettings

TEMPERATURE = COLUMN_INDEX["temperature_celsius_mean"]


@dataclass(frozen=True)
class FakeScores:
    """The same risk at every horizon."""

    risk_60m_B: npt.NDArray[np.float64]

    @property
    def risk_15m_B(self) -> npt.NDArray[np.float64]:
        return self.risk_60m_B

    @property
    def risk_240m_B(self) -> npt.NDArray[np.float64]:
        return self.risk_60m_B


class FakePredictor:
    """Hot is risky."""

    version = "fake-1"
    history_sums = 1
    history_version = "fake"

    def drift(self) -> dict[str, float]:
        return {}

    def threshold(self, budget: float) -> float:
        return 0.8

    def enter(
        self, sums_BS: npt.NDArray[np.float32], rows_BTC: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Counts minutes."""
        return sums_BS + 1

    def score(
        self, rows_BTC: npt.NDArray[np.float32], sums_BS: npt.NDArray[np.float32]
    ) -> FakeScores:
        last_BT = rows_BTC[:, -10:, TEMPERATURE].astype(np.float64)
        sums = np.nansum(last_BT, axis=1) / np.maximum(1, (~np.isnan(last_BT)).sum(1))
        return FakeScores(np.clip(sums / 100, 0, 1))

    def explain(
        self, rows_TC: npt.NDArray[np.float32], sums_S: npt.NDArray[np.float32]
    ) -> list[Evidence]:
        return [Evidence(sensor="temperature_celsius", value=None, baseline=None, contribution=1.0)]


def load_fake(model: str) -> Predictor:
    """Instead of ``run._load``."""
    return FakePredictor()


def main() -> None:
    run._load = load_fake
    settings = load(WorkerSettings, process="worker", config_file=Path(sys.argv[1]))
    log_to_stderr()
    sys.exit(run.run(settings))


if __name__ == "__main__":
    main()
