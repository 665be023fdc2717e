"""The shipped model on the demo's own story, offline: which failures it predicts, what else."""

import numpy as np
import pytest

from contract.signals import SIGNAL_NAMES, STATES
from models.history import Track
from models.reduce import reduce_samples
from models.serve import load
from models.walk import walk
from models.windows import gather, scorable
from simulator.live import SimulatedRig
from simulator.story import demo_story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUDGET = 0.033
CADENCE_SECONDS = 5
PREDICTED = ("vrm_capacitor", "fan_bearing", "memory_decay")
_T = SIGNAL_NAMES.index("temperature_celsius")
_RATE = SIGNAL_NAMES.index("temperature_rate_celsius_per_second")


def minute_rows(story, node):
    """(device, minute_M, rows_MC) of a rig's cards, dT/dt as the agent computes it."""
    rig = SimulatedRig(story, node)
    devices, ts, states, values = [], [], [], []
    before = {}
    for k in range(int(story.duration_seconds) // CADENCE_SECONDS):
        at = k * CADENCE_SECONDS
        for entry in rig.sample(at):
            x = np.array([np.nan if entry.get(n) is None else entry[n] for n in SIGNAL_NAMES])
            known = before.get(entry["device"])
            if known is not None and at - known[0] <= 60:
                x[_RATE] = (x[_T] - known[1]) / (at - known[0])
            if not np.isnan(x[_T]):
                before[entry["device"]] = (at, x[_T])
            devices.append(entry["device"])
            ts.append(at * 1000)
            states.append(STATES.index(entry["state"]))
            values.append(x)
    names, codes = np.unique(devices, return_inverse=True)
    table = reduce_samples(codes, np.array(ts), np.array(states, np.uint8), np.array(values))
    for code, name in enumerate(names):
        mine = table.device_M == code
        yield str(name), table.minute_M[mine], table.rows_MC[mine].astype(np.float32)


def test_the_demos_failures_are_predicted_and_its_harmless_events_are_not():
    story = demo_story()
    predictor = load("default")
    threshold = predictor.threshold(BUDGET)
    failed = {f.device: f for f in story.failures}
    lead_minutes, false = {}, []
    for node in story.nodes:
        for device, every_minute, every_row in minute_rows(story, node):
            failure = failed.get(device)
            ends_at = failure.failed_at_seconds if failure is not None else float("inf")
            alive = (every_minute + 1) * 60 < ends_at
            minute, rows = every_minute[alive], every_row[alive]
            ends = scorable(minute, rows)
            sums = Track(minute, rows).at(minute[ends])
            alarms = walk(predictor.score(gather(minute, rows, ends), sums).risk_240m_B, threshold)
            if failure is None:
                false += [device] if alarms.any() else []
            elif alarms.any():
                first = (minute[ends][alarms.argmax()] + 1) * 60
                lead_minutes[failure.kind] = (failure.failed_at_seconds - first) / 60
    assert set(PREDICTED) <= set(lead_minutes), lead_minutes
    # Less than a minute is what a checkpoint, a stop and a start elsewhere take.
    assert all(lead >= 2 for lead in lead_minutes.values()), lead_minutes
    assert len(false) <= 2, false
