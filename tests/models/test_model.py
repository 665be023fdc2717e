"""A model from data set to evaluation: trained small, saved, served, explained, judged."""

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from contract.errors import ConfigError, RigcanaryError
from contract.minute import COLUMN_INDEX, COLUMNS
from models.baseline import Baselines
from models.card import read_model
from models.counting import count
from models.dataset import Fleet
from models.evaluate import POLICIES, evaluate, table
from models.features import FEATURES_VERSION
from models.fit import FitOptions, fit_network
from models.network import Scaler, build, to_arrays
from models.seen import see
from models.series import FEATURES
from models.serve import load
from models.train import Sides, TrainOptions, spans_of, train
from models.windows import gather, scorable

# Training takes seconds of processor time, which can be minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)

T0 = 1_767_225_600
HOURS = 9


def write_fleet(folder, seed, cards=16):
    """Half of the cards fail after their ripple rose for eighty minutes."""
    rng = np.random.default_rng(seed)
    frames, failures = [], []
    for c in range(cards):
        minutes = int(rng.integers(7 * 60, HOURS * 60))
        ts = T0 + np.arange(0, minutes * 60, 20)
        ripple = rng.uniform(0.02, 0.05) * np.exp(0.05 * rng.standard_normal(len(ts)))
        if c % 2:
            ripple *= 1 + 3 * np.clip((ts - ts[-1] + 4800) / 4800, 0, 1)
            failures.append((f"s{seed}c{c}", ts[-1] + 15, "vrm_capacitor"))
        frames.append(
            pd.DataFrame(
                {
                    "ts": ts,
                    "node": f"n{c}",
                    "device": f"s{seed}c{c}",
                    "temperature_celsius": 60 + 5 * rng.random() + rng.standard_normal(len(ts)),
                    "power_watts": 200 + 20 * rng.standard_normal(len(ts)),
                    "vrm_ripple_volts": ripple,
                    "fan_speed_rpm": 2000 + 30 * rng.standard_normal(len(ts)),
                }
            )
        )
    folder.mkdir()
    pd.concat(frames).to_parquet(folder / "telemetry.parquet")
    pd.DataFrame(failures, columns=["device", "failed_at", "kind"]).to_csv(
        folder / "failures.csv", index=False
    )
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    return write_fleet(tmp_path_factory.mktemp("fleet") / "set", 1)


@pytest.fixture(scope="module")
def other_fleet(tmp_path_factory):
    return write_fleet(tmp_path_factory.mktemp("other") / "set", 2, cards=10)


OPTIONS = TrainOptions(
    max_windows=1000,
    time_share=None,
    origin="simulated data only",
    fit=FitOptions(epochs=4, learning_rate=4e-3),
)


@pytest.fixture(scope="module")
def model(fleet, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "m"
    train([fleet], out, OPTIONS)
    return out


@pytest.fixture(scope="module")
def predictor(model):
    return load(model)


@pytest.fixture(scope="module")
def judged(other_fleet, predictor, tmp_path_factory):
    scores = tmp_path_factory.mktemp("scores") / "s.parquet"
    return evaluate(other_fleet, predictor, (0.033, 1.0), scores), scores


def windows_of(folder, device):
    with Fleet(folder) as fleet:
        card = next(d for d in fleet.devices() if d.device == device)
    return gather(card.minute_M, card.rows_MC, scorable(card.minute_M, card.rows_MC))


def test_the_card_says_what_the_model_is(model):
    card = json.loads((model / "card.json").read_text())
    assert card["trained_on"] == "simulated data only"
    assert card["features_version"] == FEATURES_VERSION
    assert card["data"]["devices"] == 16
    assert card["split"]["validation_failures"] > 0
    assert set(card["policies"]) == set(POLICIES)
    for policy in card["policies"].values():
        assert [v["false_alarm_budget_per_device_day"] for v in policy["validation"]] == [
            0.033,
            0.003,
        ]


def test_a_rising_ripple_is_seen_and_explained(other_fleet, predictor):
    sick = windows_of(other_fleet, "s2c1")
    risks = predictor.score(sick)
    assert risks.risk_60m_B[-5:].mean() > 5 * risks.risk_60m_B[:100].mean()
    assert risks.risk_240m_B[-5:].mean() > 2 * risks.risk_240m_B[:60].mean()
    evidence = predictor.explain(sick[-5])
    assert evidence[0]["sensor"] == "vrm_ripple_volts"
    assert evidence[0]["value"] > 1.3 * evidence[0]["baseline"]
    assert 0.4 < evidence[0]["contribution"] <= 1
    assert sum(e["contribution"] for e in evidence) <= 1 + 1e-9


def test_evidence_is_faithful(other_fleet, predictor):
    """Without the sensor that is named first the risk falls more than without another one."""

    def without(window, sensor):
        taken = window.copy()
        taken[:, [i for n, i in COLUMN_INDEX.items() if n.startswith(sensor + "_")]] = np.nan
        return taken

    named, others = [], []
    for device in ("s2c1", "s2c3", "s2c5", "s2c7", "s2c9"):
        for window in windows_of(other_fleet, device)[-25::8]:
            evidence = predictor.explain(window)
            carried = [s for s in ("temperature_celsius", "power_watts", "vrm_ripple_volts",
                                   "fan_speed_rpm") if s != evidence[0]["sensor"]]  # fmt: skip
            cases = [window, without(window, evidence[0]["sensor"])]
            cases += [without(window, sensor) for sensor in carried]
            risk = predictor.score(np.stack(cases)).risk_240m_B
            named.append(risk[0] - risk[1])
            others.append(risk[0] - risk[2:].mean())
    assert np.mean(named) > 0.1
    assert np.mean(named) > 2 * np.mean(others)


def test_save_and_load_give_equal_scores(model, predictor, other_fleet, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    again = load(copy)
    rows = windows_of(other_fleet, "s2c1")[-200:]
    assert again.version == predictor.version
    assert again.threshold(0.033) == predictor.threshold(0.033)
    np.testing.assert_array_equal(again.score(rows).risk_60m_B, predictor.score(rows).risk_60m_B)


def test_scores_are_finite_ordered_and_do_not_depend_on_the_batch(predictor):
    rng = np.random.default_rng(0)
    odd = np.array([np.nan, np.inf, -np.inf, 0, -5, 3e38], np.float32)
    rows = rng.choice(odd, (20, 60, len(COLUMNS)))
    rows[0], rows[1] = np.nan, 0
    risks = np.stack(predictor.score(rows))
    assert np.isfinite(risks).all()
    assert ((risks >= 0) & (risks <= 1)).all()
    assert (np.diff(risks, axis=0) >= 0).all()
    one = np.stack(predictor.score(rows[7:8]))
    np.testing.assert_allclose(one[:, 0], risks[:, 7], rtol=1e-3, atol=1e-6)
    assert predictor.score(rows[:0]).risk_60m_B.shape == (0,)
    shares = predictor.attention(rows)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-4)
    for window in rows[:4]:
        assert all(0 < e["contribution"] <= 1 for e in predictor.explain(window))


def test_wrong_windows_are_refused(predictor):
    with pytest.raises(ValueError, match="60"):
        predictor.score(np.zeros((2, 59, len(COLUMNS)), np.float32))


FROZEN = {
    "name",
    "role",
    "false_alarm_budget_per_device_day",
    "event_recall",
    "precision",
    "false_alarms_per_device_day",
    "late",
    "lead_minutes",
    "by_kind",
    "curve",
    "ci95",
}


def test_what_evaluate_prints(judged):
    result, _ = judged
    assert {"devices", "device_days", "failures", "unjudged", "policies", "window"} <= set(result)
    assert (result["devices"], result["failures"], result["unjudged"]) == (10, 5, 0)
    assert set(result["window"]) == {"average_precision", "roc_auc", "brier", "ece"}
    assert [(p["name"], p["false_alarm_budget_per_device_day"]) for p in result["policies"]] == [
        (name, budget) for budget in (0.033, 1.0) for name in POLICIES
    ]
    for policy in result["policies"]:
        assert set(policy) >= FROZEN
        assert set(policy["lead_minutes"]) == {"median", "p10"}
        assert policy["by_kind"]["vrm_capacitor"]["failures"] == 5
        assert policy["curve"]
        assert set(policy["curve"][0]) == {
            "false_alarms_per_device_day",
            "event_recall",
            "threshold",
        }
    served = [p for p in result["policies"] if p["role"] == "served"]
    assert {p["name"] for p in served} == {"ensemble"}
    parts = {p["name"] for p in result["policies"] if p["role"] == "component"}
    assert parts == {"lstm_attention", "gradient_boosting"}
    never = next(p for p in result["policies"] if p["name"] == "never_alarm")
    assert (never["event_recall"], never["false_alarms_per_device_day"]) == (0, 0)
    assert served[1]["event_recall"] >= 0.6
    json.dumps(result, allow_nan=False)
    assert "ensemble" in table(result)


def test_anyone_can_count_again_from_the_scores(judged, other_fleet):
    result, path = judged
    scores = pq.read_table(path).to_pandas()
    assert list(scores.columns)[:5] == ["policy", "device", "at", "score", "threshold"]
    from models.counting import card_of

    with Fleet(other_fleet) as fleet:
        cards = {d.device: card_of(d) for d in fleet.devices()}
    for policy in result["policies"]:
        mine = scores[
            (scores["policy"] == policy["name"])
            & (
                scores["false_alarm_budget_per_device_day"]
                == policy["false_alarm_budget_per_device_day"]
            )
        ]
        counts = []
        for device, rows in mine.groupby("device"):
            alarms = rows["at"][rows["score"] >= rows["threshold"]]
            counts.append(
                count(
                    cards[device],
                    (
                        alarms.astype("int64") // (10**6 if "ns" in str(alarms.dtype) else 1)
                    ).tolist(),
                )
            )
        assert sum(c.false for c in counts) == policy["false_alarms"]
        assert sum(c.late for c in counts) == policy["late"]
        assert sum(c.lead_ms is not None for c in counts) == 5 * policy["event_recall"]


def test_the_future_has_no_part_in_a_score(other_fleet, predictor):
    with Fleet(other_fleet) as fleet:
        card = next(iter(fleet.devices()))
    ends = scorable(card.minute_M, card.rows_MC)[:40]
    before = gather(card.minute_M, card.rows_MC, ends)
    changed = card.rows_MC.copy()
    changed[ends[-1] + 1 :] *= 7
    np.testing.assert_array_equal(before, gather(card.minute_M, changed, ends))


def test_stored_trees_are_those_of_scikit_learn():
    from sklearn.ensemble import HistGradientBoostingClassifier

    from models.baseline import trees_of

    rng = np.random.default_rng(3)
    z = rng.normal(size=(400, 12)).astype(np.float32)
    y = z[:, 0] * z[:, 1] + 0.3 * rng.normal(size=400) > 0
    fitted = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(z, y)
    np.testing.assert_allclose(trees_of(fitted).score(z), fitted.predict_proba(z)[:, 1], atol=1e-6)


def test_baselines_survive_the_folder(model):
    stored = read_model(model)
    baselines = Baselines.from_arrays(stored.baselines)
    rows = np.full((3, 60, len(COLUMNS)), np.nan, np.float32)
    rows[:, :, COLUMN_INDEX["samples"]] = rows[:, :, COLUMN_INDEX["samples_ok"]] = 12
    rows[1, 55:, COLUMN_INDEX["samples_ok"]] = 0
    rows[2, :, COLUMN_INDEX["temperature_celsius_max"]] = 95
    scores = baselines.scores(see(rows))
    assert set(scores) == set(POLICIES) - {"ensemble", "lstm_attention"}
    assert scores["telemetry_missing"].tolist() == [0, 0.5, 0]
    assert scores["static_thresholds"][2] > 0.5 > scores["static_thresholds"][0]
    assert all(np.isfinite(s).all() and ((s >= 0) & (s <= 1)).all() for s in scores.values())


def test_weights_that_are_not_finite_are_not_saved():
    scaler = Scaler(np.zeros(3, np.float32), np.ones(3, np.float32))
    network = build(scaler)
    network.trainable_weights[0].assign(network.trainable_weights[0] * np.nan)
    with pytest.raises(RigcanaryError, match="not finite, nothing was saved"):
        to_arrays(network, scaler)


def test_a_loss_that_diverges_gives_no_model():
    x = np.zeros((64, 10, len(FEATURES)), np.float16)
    y = np.zeros((64, 3), np.float32)
    options = FitOptions(epochs=2, batch=32, learning_rate=float("nan"))
    with pytest.raises(RigcanaryError, match="diverged"):
        fit_network((x, y), (x, y), options, lambda _: None)


def test_models_that_cannot_be_used(model, tmp_path):
    with pytest.raises(ConfigError, match="is not there"):
        load(tmp_path / "nowhere")
    for name, change, message in (
        ("schema", {"schema": "other"}, "not a model card"),
        ("features", {"features_version": "0"}, "trained on features 0"),
        ("weights", {"version": "ensemble-0"}, "not those that card.json describes"),
    ):
        copy = tmp_path / name
        shutil.copytree(model, copy)
        card = json.loads((copy / "card.json").read_text())
        (copy / "card.json").write_text(json.dumps(card | change))
        with pytest.raises(ConfigError, match=message):
            load(copy)
    (copy / "weights.npz").write_bytes(b"no")
    with pytest.raises(ConfigError, match="cannot read it"):
        load(copy)


def test_sets_that_teach_nothing(tmp_path):
    folder = write_fleet(tmp_path / "set", 5, cards=4)
    (folder / "failures.csv").write_text("device,failed_at,kind\n")
    with pytest.raises(RigcanaryError, match="no window within 240 minutes of a failure"):
        train([folder], tmp_path / "out", OPTIONS)


def test_validation_sets_must_hold_other_cards(fleet, tmp_path):
    with pytest.raises(RigcanaryError, match="15 other cards are in training and validation"):
        train([fleet], tmp_path / "out", OPTIONS, validation=[fleet])


def test_validation_on_another_set(fleet, other_fleet):
    with Fleet(fleet) as own, Fleet(other_fleet) as other:
        sides = Sides(own, other, spans_of(own), OPTIONS)
        assert sides.watched is other
        assert sides.split.validation == {d.device for d in other.devices()}
        assert len(sides.spans) == 26


def test_a_budget_must_be_positive(other_fleet, predictor):
    with pytest.raises(ConfigError, match="--budget 0"):
        evaluate(other_fleet, predictor, (0.0,))
