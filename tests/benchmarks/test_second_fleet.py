"""The second generator of fleets: a data set that the reader takes, the same for the same seed."""

import numpy as np
import pandas as pd

from benchmarks.second_fleet import KINDS, Fleet, write
from models.dataset import Fleet as DataSet


def test_its_fleet_can_be_read_and_is_its_seeds(tmp_path):
    figures = write(tmp_path / "a", Fleet(3, cards=12, days=0.15, interval=20, share=0.5))
    assert figures["failures"] == 6
    assert set(figures["by_kind"]) <= set(KINDS)
    with DataSet(tmp_path / "a") as fleet:
        devices = list(fleet.devices())
    assert len(devices) == 12
    assert sum(d.outcome.failure_ms is not None for d in devices) == 6
    telemetry = pd.read_parquet(tmp_path / "a" / "telemetry.parquet")
    failures = pd.read_csv(tmp_path / "a" / "failures.csv")
    failed = dict(zip(failures["device"], failures["failed_at"], strict=True))
    last = telemetry.groupby("device")["ts"].max()
    last_ms = dict(
        zip(last.index, last.astype("datetime64[ms, UTC]").astype(np.int64), strict=True)
    )
    assert all(last_ms[device] < 1000 * at for device, at in failed.items())
    write(tmp_path / "b", Fleet(3, cards=12, days=0.15, interval=20, share=0.5))
    pd.testing.assert_frame_equal(telemetry, pd.read_parquet(tmp_path / "b" / "telemetry.parquet"))
