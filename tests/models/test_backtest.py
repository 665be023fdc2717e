"""A policy tried on history: counts that add up, the same bytes each time, budgets that bite."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pandas as pd
import pytest

from contract.errors import ConfigError
from contract.minute import COLUMN_INDEX, COLUMNS
from models.backtest import backtest, table
from stream import minute_signs, policy_file
from stream.policy import Limits, Policy

START_S = 1_767_225_600
MINUTES = 180
FAILS = 170
TEMPERATURE = COLUMN_INDEX["temperature_celsius_mean"]


class Risks(NamedTuple):
    risk_240m_B: Any


class Hot:
    """Risk is the newest minute's temperature over 100 °C."""

    version = "hot-1"

    def threshold(self, budget: float) -> float:
        return 0.8

    def score(self, rows_BTC: Any, sums_BS: Any) -> Risks:
        return Risks(np.clip(np.nan_to_num(rows_BTC[:, -1, TEMPERATURE]) / 100.0, 0.0, 1.0))


def data_set(folder: Path, *, hot: int, failing: int, cards: int = 40) -> Path:
    """Cards of which the first ``hot`` heat at minute 100 and the first ``failing`` fail at 170."""
    rows = []
    for card in range(cards):
        minutes = FAILS if card < failing else MINUTES
        for minute in range(minutes):
            row = dict.fromkeys(COLUMNS, 0.0)
            row["samples"] = row["samples_ok"] = 12.0
            heat = 30.0 if card < hot and minute >= 100 else 0.0
            row["temperature_celsius_mean"] = 60.0 + heat
            row["ecc_uncorrected_total_last"] = row["vrm_ripple_volts_mean"] = 0.0
            rows.append({
                "minute": pd.Timestamp(START_S + 60 * minute, unit="s", tz="UTC"),
                "site": "lab", "node": f"rig{card // 4:02}", "device": f"GPU-{card:02}", **row,
            })  # fmt: skip
    folder.mkdir()
    pd.DataFrame(rows).to_parquet(folder / "minutes.parquet")
    lines = [f"GPU-{card:02},{START_S + 60 * FAILS},fan" for card in range(failing)]
    (folder / "failures.csv").write_text("\n".join(["device,failed_at,kind", *lines]) + "\n")
    return folder


def run(folder: Path, policy: Policy | None = None) -> tuple[dict[str, Any], list[bytes]]:
    lines: list[bytes] = []
    made: Any = Hot()
    return backtest(folder, made, policy or policy_file.read(), 0.033, lines.append), lines


def test_moves_are_saves_where_the_card_fails_while_it_is_out(tmp_path: Path) -> None:
    result, lines = run(data_set(tmp_path / "fleet", hot=2, failing=1))
    assert (result["moves"], result["saves"], result["false_moves"]) == (2, 1, 1)
    assert (result["failures"], result["missed"], result["budget_hits"]) == (1, 0, 0)
    assert result["moves_by_cause"] == {"predicted": 2}
    first = orjson.loads(lines[0])
    # Raised by the second hot minute, at its end.
    assert first["decided_ms"] == (START_S + 60 * 102) * 1000
    assert "2 moves" in table(result) or "moves 2" in table(result)


def test_the_budget_bites_and_says_so(tmp_path: Path) -> None:
    folder = data_set(tmp_path / "fleet", hot=5, failing=5)
    result, _ = run(folder)
    assert (result["moves"], result["breaker_opened"], result["waiting_at_end"]) == (2, 1, 3)
    assert (result["budget_hits"], result["failed_while_waiting"]) == (3, 3)
    assert "signs: predicted" in result["breaker_reasons"][0]
    path = tmp_path / "policy.toml"
    path.write_text("[budget]\nwindow_ratio = 0.5\nopen_ratio = 0.5\n")
    wider, _ = run(folder, policy_file.read(path))
    assert (wider["moves"], wider["saves"], wider["breaker_opened"]) == (5, 5, 0)


def test_the_same_history_gives_the_same_decisions_byte_for_byte(tmp_path: Path) -> None:
    folder = data_set(tmp_path / "fleet", hot=5, failing=3)
    first, again = run(folder), run(folder)
    assert first == again
    assert first[1]


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run(tmp_path / "nothing")


def test_minute_rows_give_the_signs_that_samples_would() -> None:
    rows_MC = np.full((4, len(COLUMNS)), np.nan)
    for name in ("samples_lost", "samples_unresponsive", "ecc_uncorrected_total_increase"):
        rows_MC[:, COLUMN_INDEX[name]] = 0.0
    rows_MC[1, TEMPERATURE] = 98.0
    rows_MC[2, COLUMN_INDEX["samples_lost"]] = 5
    rows_MC[:, COLUMN_INDEX["ecc_uncorrected_total_last"]] = [1.0, 1.0, 1.0, 2.0]
    bits = minute_signs.hits(rows_MC, Limits())
    found = [[s.rule for s in minute_signs.signs("a", int(b), 0)] for b in bits]
    assert found == [[], ["temperature"], ["lost"], ["ecc_uncorrected"]]
