"""What Prometheus sees: contracts section 8."""

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from contract.signals import SIGNALS
from stream.edge.fleet_metrics import fleet_exposition
from stream.edge.metrics import WorkerMetrics
from stream.fleet_device import VALUE_COLUMNS
from stream.fleet_view import FORGET_SECONDS, FleetView

M0 = 1_767_225_600
LABELS = {"site": "lab", "node": "rig1", "device": "GPU-1"}


def values(row_value):
    return {column: row_value for _, column in VALUE_COLUMNS}


def fill(view, minutes, *devices, **more):
    view.minute(
        {
            "site": "lab",
            "node": "rig1",
            "minute": M0 + 60 * minutes,
            "devices": [
                {
                    "device": d,
                    "index": 0,
                    "model": "RTX 3090",
                    "serial": "S1",
                    "driver": "550",
                    "samples_ok": 12,
                    **values(1.0),
                    **more,
                }
                for d in devices
            ],
        }
    )


def scrape(metrics, view=None):
    text = generate_latest(metrics.registry) + (fleet_exposition(view) if view else b"")
    samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def of(samples, name, **labels):
    return samples.get((name, tuple(sorted(labels.items()))))


def names_of(samples, device):
    return {name for name, labels in samples if ("device", device) in labels}


@pytest.fixture
def view():
    return FleetView()


@pytest.fixture
def metrics(view):
    return WorkerMetrics(view)


def test_every_sensor_by_its_contract_name(view, metrics):
    fill(view, 0, "GPU-1")
    view.risk(
        {
            "site": "lab",
            "node": "rig1",
            "minute": M0,
            "devices": [
                {
                    "device": "GPU-1",
                    "status": "scored",
                    "completeness": 1.0,
                    "risk_15m": 0.1,
                    "risk_60m": 0.2,
                    "risk_240m": 0.3,
                    "health_score": 88.0,
                }
            ],
        }
    )
    samples = scrape(metrics, view)
    for signal in SIGNALS:
        assert of(samples, f"rigcanary_{signal.name}", **LABELS) == 1.0, signal.name
    assert of(samples, "rigcanary_device_failure_risk_ratio", **LABELS) == 0.3
    assert of(samples, "rigcanary_device_health_score", **LABELS) == 88.0
    assert of(samples, "rigcanary_device_present", **LABELS) == 1.0
    assert of(samples, "rigcanary_device_state", **LABELS, state="ok") == 1.0
    assert (
        of(
            samples,
            "rigcanary_device_info",
            **LABELS,
            index="0",
            vendor="",
            model="RTX 3090",
            serial="S1",
            driver="550",
        )
        == 1.0
    )
    assert of(samples, "rigcanary_device_last_sample_timestamp_seconds", **LABELS) == M0 + 60
    build = [labels for name, labels in samples if name == "rigcanary_build_info"]
    assert len(build) == 1


def test_a_missing_sensor_has_no_series(view, metrics):
    fill(view, 0, "GPU-1", fan_speed_rpm_mean=None)
    samples = scrape(metrics, view)
    assert of(samples, "rigcanary_fan_speed_rpm", **LABELS) is None
    assert of(samples, "rigcanary_temperature_celsius", **LABELS) == 1.0


def test_a_gone_device_loses_its_series_within_one_scrape(view, metrics):
    # client_python#182 and its many children: the last value of a removed device for ever.
    fill(view, 0, "GPU-1", "GPU-2")
    before = names_of(scrape(metrics, view), "GPU-1")
    assert len(before) > len(SIGNALS)
    fill(view, 1, "GPU-2")
    after = scrape(metrics, view)
    assert names_of(after, "GPU-1") == {
        "rigcanary_device_present",
        "rigcanary_device_state",
        "rigcanary_device_last_sample_timestamp_seconds",
    }
    assert of(after, "rigcanary_device_present", **LABELS) == 0.0
    assert of(after, "rigcanary_device_state", **LABELS, state="absent") == 1.0
    assert names_of(after, "GPU-2") == before
    for step in range(1, 70):
        view.tick(step * 60.0)
        fill(view, 1 + step, "GPU-2")
        if step * 60 > FORGET_SECONDS + 60:
            assert names_of(scrape(metrics, view), "GPU-1") == set()
    assert names_of(scrape(metrics, view), "GPU-2") == before


def test_series_of_one_card_do_not_multiply(view, metrics):
    # dcgm-exporter#340, #574: labels that churn (jobs, names) multiplied the series.
    fill(view, 0, "GPU-1")
    count = len(scrape(metrics, view))
    for n in range(1, 1_000):
        fill(view, n, "GPU-1", job=f"job-{n}", hostname=f"pod-{n}", Hostname="x", driver=f"55{n}")
    samples = scrape(metrics, view)
    assert len(samples) == count
    for name, labels in samples:
        if name.startswith("rigcanary_") and ("device", "GPU-1") in labels:
            allowed = {
                "site",
                "node",
                "device",
                "state",
                "index",
                "vendor",
                "model",
                "serial",
                "driver",
            }
            assert {key for key, _ in labels} <= allowed


def test_hostile_names_are_escaped(view, metrics):
    device = 'a"} 1\nrigcanary_fake 1\\'
    fill(view, 0, device)
    samples = scrape(metrics, view)
    assert len(names_of(samples, device)) > len(SIGNALS)
    assert of(samples, "rigcanary_fake") is None


def test_a_sites_breaker_is_closed_until_it_opens(view, metrics):
    fill(view, 0, "GPU-1")
    site = next(iter(view.devices())).site
    assert f'rigcanary_breaker_open{{site="{site}"}} 0' in fleet_exposition(view).decode()
    opened = {"decision_id": "d", "type": "breaker.opened", "data": {"site": site}}
    view.decision(opened)
    assert f'rigcanary_breaker_open{{site="{site}"}} 1' in fleet_exposition(view).decode()


def test_the_text_is_what_the_client_library_would_write(view, metrics):
    fill(view, 0, "GPU-1", ecc_corrected_total_last=2**53 - 1, power_watts_mean=1e-7)
    samples = scrape(metrics, view)
    assert of(samples, "rigcanary_ecc_corrected_total", **LABELS) == 2**53 - 1
    assert of(samples, "rigcanary_power_watts", **LABELS) == 1e-7
    text = fleet_exposition(view).decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert text.endswith("\n")
    assert "# TYPE rigcanary_ecc_corrected_total counter" in text


def test_the_workers_own_figures():
    metrics = WorkerMetrics()
    metrics.records.inc(3)
    metrics.repairs.labels("fan_speed_rpm").inc()
    metrics.dead_letters.labels("not-json").inc()
    metrics.minute_rows.labels("published").inc(8)
    metrics.scorings.labels("not_enough_data").inc(8)
    metrics.scoring_seconds.observe(0.02)
    metrics.decisions.labels("migration.requested", "predicted").inc()
    metrics.watermark_lag_seconds.labels("0").set(17)
    metrics.lag_records.labels("0").set(4)
    metrics.deliveries.labels("runner", "delivered").inc()
    metrics.attempt("runner", "timeout", 15.0)
    metrics.track_outbox(lambda: {"runner": 5}, ["runner", "other"])
    metrics.set_model_version("m2")
    samples = scrape(metrics)
    assert of(samples, "rigcanary_worker_records_total") == 3
    assert of(samples, "rigcanary_worker_dead_letters_total", reason="not-json") == 1
    assert of(samples, "rigcanary_worker_scoring_seconds_count") == 1
    assert (
        of(
            samples,
            "rigcanary_worker_delivery_attempts_total",
            receiver="runner",
            outcome="timeout",
        )
        == 1
    )
    assert of(samples, "rigcanary_worker_outbox_depth", receiver="runner") == 5
    assert of(samples, "rigcanary_worker_outbox_depth", receiver="other") == 0
    models = [
        dict(labels)["model_version"] for name, labels in samples if name == "rigcanary_build_info"
    ]
    assert models == ["m2"]


def test_two_workers_in_one_process_do_not_clash():
    assert WorkerMetrics().registry is not WorkerMetrics().registry
