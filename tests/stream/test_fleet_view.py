"""The fleet view: newest of each device, who is gone, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.fleet_device import RISKS_KEPT, VALUE_COLUMNS, row_state
from stream.fleet_view import DECISIONS_KEPT, FORGET_SECONDS, SILENT_SECONDS, FleetView

M0 = 1_767_225_600


def row(device, ok=12, lost=0, **more):
    return {
        "device": device,
        "index": 0,
        "model": "GeForce GTX 1070 Ti",
        "samples": ok + lost,
        "samples_ok": ok,
        "samples_lost": lost,
        "samples_unresponsive": 0,
        "samples_unknown": 0,
        "temperature_celsius_mean": 63.5,
        "ecc_corrected_total_last": None,
        **more,
    }


def minute(minutes, *rows, node="rig1", site="lab"):
    return {
        "schema": "rigcanary.minutes/1",
        "site": site,
        "node": node,
        "minute": M0 + 60 * minutes,
        "messages": 12,
        "interval_seconds": 5.0,
        "devices": list(rows),
    }


def risk(minutes, device, value, node="rig1", site="lab", **more):
    return {
        "schema": "rigcanary.risks/1",
        "site": site,
        "node": node,
        "minute": M0 + 60 * minutes,
        "model_version": "m1",
        "devices": [
            {
                "device": device,
                "status": "scored",
                "completeness": 1.0,
                "risk_15m": value,
                "risk_60m": value,
                "risk_240m": value,
                "health_score": 90.0,
                **more,
            }
        ],
    }


def decision(kind, identity="d1", dry_run=False, **data):
    return {
        "schema": "rigcanary.decision/1",
        "decision_id": identity,
        "type": kind,
        "dry_run": dry_run,
        "data": {"site": "lab", "node": "rig1", **data},
    }


def shown(view, device="a"):
    (found,) = [d for d in view.page()["devices"] if d["device"] == device]
    return found


def test_newest_minute_and_risk():
    view = FleetView()
    view.minute(minute(0, row("a")))
    view.risk(risk(0, "a", 0.25))
    device = shown(view)
    assert (device["state"], device["present"]) == ("ok", True)
    assert (device["risk"], device["risks"], device["health_score"]) == (0.25, [0.25], 90.0)
    assert device["values"]["temperature_celsius"] == 63.5
    assert device["values"]["ecc_corrected_total"] is None
    assert set(device["values"]) == {name for name, _ in VALUE_COLUMNS}


def test_late_and_repeated_values():
    view = FleetView()
    view.minute(minute(5, row("a", temperature_celsius_mean=70.0)))
    view.minute(minute(4, row("a", temperature_celsius_mean=10.0)))
    assert shown(view)["values"]["temperature_celsius"] == 70.0
    view.minute(minute(5, row("a", temperature_celsius_mean=71.0)))  # corrected
    assert shown(view)["values"]["temperature_celsius"] == 71.0
    for value in (0.1, 0.2):
        view.risk(risk(5, "a", value))
    view.risk(risk(4, "a", 0.9))
    assert shown(view)["risks"] == [0.2]


def test_a_row_without_the_device_means_gone():
    view = FleetView()
    view.minute(minute(0, row("a"), row("b")))
    view.minute(minute(1, row("b")))
    assert not shown(view, "a")["present"]
    assert shown(view, "a")["state"] == "absent"
    assert shown(view, "b")["present"]


def test_lost_by_row_and_by_event():
    view = FleetView()
    view.minute(minute(0, row("a"), row("b")))
    view.minute(minute(1, row("a", ok=0, lost=12), row("b")))
    assert (shown(view)["state"], shown(view)["present"]) == ("lost", False)
    event = {"site": "lab", "node": "rig1", "device": "b", "ts": M0 + 130.0, "type": "device_lost"}
    view.event(event)
    assert shown(view, "b")["state"] == "lost"
    # The minute in which it happened still has good samples from before; the event knew better.
    view.minute(minute(2, row("a", ok=0, lost=12), row("b", ok=2, lost=10)))
    assert shown(view, "b")["state"] == "lost"
    view.event({**event, "ts": M0 + 200.0, "type": "device_returned"})
    assert shown(view, "b")["state"] == "ok"
    view.event({**event, "device": "never seen"})
    view.event({**event, "node": "never seen"})


def test_a_silent_node_behind_its_site():
    view = FleetView()
    view.minute(minute(0, row("a"), node="rig1"))
    view.minute(minute(0, row("b"), node="rig2"))
    view.minute(minute(14, row("b"), node="rig2"))
    assert shown(view, "a")["present"]
    view.minute(minute(16, row("b"), node="rig2"))
    assert shown(view, "a")["state"] == "absent"
    # Another site's clock says nothing about this one.
    view.minute(minute(10_000, row("c"), site="other"))
    assert shown(view, "b")["present"]


def test_forgotten_after_a_bounded_time_on_either_clock():
    view = FleetView()
    view.minute(minute(0, row("a"), node="rig1"))
    view.minute(minute(0, row("b"), node="rig2"))
    view.tick(1_000.0)
    view.minute(minute(FORGET_SECONDS // 60 + 1, row("b"), node="rig2"))
    view.tick(1_010.0)
    assert [d.device for d in view.devices()] == ["b"]
    view.tick(1_010.0 + SILENT_SECONDS + 1)
    assert not shown(view, "b")["present"]
    view.tick(1_010.0 + FORGET_SECONDS + 1)
    assert (len(view), view.devices()) == (0, [])
    assert view.page()["newest_minute"] is None


def test_what_came_before_the_first_tick_is_not_stale():
    view = FleetView()
    view.minute(minute(0, row("a")))
    view.tick(9e9)
    assert shown(view)["present"]


def test_moves_follow_decisions_but_not_in_dry_run():
    view = FleetView()
    view.minute(minute(0, row("a"), row("b")))
    view.decision(decision("migration.requested", "d0", dry_run=True, device="a"))
    assert shown(view)["state"] == "ok"
    view.decision(decision("migration.requested", "d1", device="a"))
    assert shown(view)["state"] == "quarantined"
    view.decision(decision("device.released", "d2", device="a"))
    assert shown(view)["state"] == "ok"
    view.decision(decision("migration.requested", "d3", device=None))  # the whole node
    assert [shown(view, d)["state"] for d in "ab"] == ["quarantined", "quarantined"]
    view.decision(decision("migration.requested", "d3", device=None))
    assert [d["decision_id"] for d in view.decisions()] == ["d3", "d2", "d1", "d0"]


def test_breaker():
    view = FleetView()
    view.decision(decision("breaker.opened", "b1"))
    assert view.page()["breakers_open"] == ["lab"]
    view.decision(decision("breaker.closed", "b2"))
    assert view.page()["breakers_open"] == []


def test_bounds():
    view = FleetView(max_devices=10)
    for n in range(20):
        view.minute(minute(0, row("a"), node=f"rig{n}"))
    assert (len(view), view.refused) == (10, 10)
    for n in range(RISKS_KEPT + 5):
        view.risk(risk(n, "a", 0.5))
    assert len(shown_node(view, "rig1")["risks"]) == RISKS_KEPT
    for n in range(DECISIONS_KEPT + 5):
        view.decision(decision("device.released", f"d{n}", device="a"))
    assert len(view.decisions()) == DECISIONS_KEPT


def shown_node(view, node):
    return next(d for d in view.page()["devices"] if d["node"] == node)


def test_drop_node():
    view = FleetView()
    view.minute(minute(0, row("a"), row("b")))
    view.drop_node("lab", "rig1")
    view.drop_node("lab", "rig1")
    assert len(view) == 0


def test_pages_sort_and_search():
    view = FleetView()
    for n in range(250):
        view.minute(minute(0, row(f"GPU-{n:03}"), node=f"rig{n // 8}"))
        if n:
            view.risk(risk(0, f"GPU-{n:03}", n / 250, node=f"rig{n // 8}", health_score=n / 3))
    first = view.page(limit=100)
    assert [d["device"] for d in first["devices"][:2]] == ["GPU-249", "GPU-248"]
    assert (first["matching"], first["devices_total"], first["nodes_total"]) == (250, 250, 32)
    last = view.page(offset=200, limit=100)["devices"]
    assert len(last) == 50
    assert last[-1]["device"] == "GPU-000"  # no score sorts last
    assert view.page(sort="health")["devices"][0]["device"] == "GPU-001"
    assert view.page(sort="name")["devices"][0]["device"] == "GPU-000"
    assert [d["device"] for d in view.page(search="gpu-24", sort="name")["devices"]] == [
        f"GPU-{n}" for n in range(240, 250)
    ]
    assert view.page(search="1070")["matching"] == 250
    with pytest.raises(KeyError):
        view.page(sort="colour")


def test_odd_values_become_none():
    view = FleetView()
    view.minute(minute(0, row("a", temperature_celsius_mean=float("nan"), model=None, index=None)))
    view.risk(risk(0, "a", None, status="not enough data", completeness=0.3, health_score=None))
    device = shown(view)
    assert device["values"]["temperature_celsius"] is None
    assert (device["risk"], device["risks"]) == (None, [None])
    assert (device["status"], device["completeness"]) == ("not enough data", 0.3)


@given(
    st.dictionaries(st.sampled_from(["ok", "lost", "unresponsive", "unknown"]), st.integers(0, 20)),
    st.sampled_from(["ok", "lost"]),
)
def test_row_state(counts, previous):
    state = row_state({f"samples_{k}": v for k, v in counts.items()}, previous)
    if not any(counts.values()):
        assert state == previous
    elif counts.get("ok"):
        assert state == "ok"
    else:
        assert counts[state] == max(counts.values())
