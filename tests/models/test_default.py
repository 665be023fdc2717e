"""The shipped model: small, honest about its data, usable whatever the window."""

import json

import numpy as np
import pytest

from contract.minute import COLUMN_INDEX, COLUMNS
from models.card import DEFAULT, read_model
from models.make_default import COMMAND
from models.serve import load

pytestmark = pytest.mark.timeout(600)


def test_its_card_says_simulated_and_how_it_was_made():
    card = read_model("default").card
    assert card["trained_on"] == "simulated data only"
    assert card["command"] == COMMAND
    assert {"hash", "devices", "failures"} <= set(card["data"])
    assert "gradient_boosting" in card["policies"]


def test_it_is_under_five_megabytes():
    assert sum(p.stat().st_size for p in DEFAULT.rglob("*") if p.is_file()) < 5e6
    json.loads((DEFAULT / "card.json").read_text())


def test_odd_windows_and_a_healthy_one():
    predictor = load("default")
    rows = np.full((4, 60, len(COLUMNS)), np.nan, np.float32)
    rows[1] = 0
    rows[2] = 3e38
    rows[3, :, [COLUMN_INDEX["samples"], COLUMN_INDEX["samples_ok"]]] = 12
    for name, value in (("temperature_celsius", 62.0), ("power_watts", 180.0)):
        for statistic in ("mean", "min", "max"):
            rows[3, :, COLUMN_INDEX[f"{name}_{statistic}"]] = value
        rows[3, :, COLUMN_INDEX[f"{name}_std"]] = 0.5
        rows[3, :, COLUMN_INDEX[f"{name}_count"]] = 12
    risks = np.stack(predictor.score(rows))
    assert np.isfinite(risks).all()
    assert risks[1, 3] < predictor.threshold(0.033) <= predictor.threshold(0.003)
