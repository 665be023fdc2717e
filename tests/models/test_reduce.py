"""The table reducer gives the rows that the stream gives, to the bit."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.message import TELEMETRY_SCHEMA
from contract.minute import COLUMN_INDEX
from contract.signals import SIGNAL_NAMES, SIGNALS, STATES
from models.reduce import reduce_samples
from stream import minutes
from stream.validate import decode

T0_MS = 1_767_225_600_000


def random_fleet(rng, samples, devices):
    ts = np.sort(rng.choice(180_000, samples, replace=False)) + T0_MS
    low, high = (np.array([getattr(s, side) for s in SIGNALS]) for side in ("low", "high"))
    x = rng.uniform(low, np.minimum(high, 1e6), (samples, devices, len(SIGNALS)))
    x[rng.random(x.shape) < 0.3] = np.nan
    x[rng.random(x.shape) < 0.02] = 1e17
    return ts, x, rng.integers(0, len(STATES), (samples, devices))


@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_same_rows_as_the_stream(seed, samples, devices):
    rng = np.random.default_rng(seed)
    ts, x, state = random_fleet(rng, samples, devices)
    decoded = [
        decode(
            {
                "schema": TELEMETRY_SCHEMA,
                "site": "s",
                "node": "n",
                "boot_id": "b",
                "seq": i,
                "ts": int(t) / 1000,
                "devices": [
                    {
                        "device": f"d{d}",
                        "state": STATES[state[i, d]],
                        **{
                            n: None if np.isnan(v) else v
                            for n, v in zip(SIGNAL_NAMES, x[i, d].tolist(), strict=True)
                        },
                    }
                    for d in range(devices)
                ],
            },
            int(ts[-1]),
            Counter(),
        )
        for i, t in enumerate(ts)
    ]
    device = np.tile(np.arange(devices), samples)
    order = rng.permutation(samples * devices)  # rows in any order
    table = reduce_samples(
        device[order],
        np.repeat(ts, devices)[order],
        state.reshape(-1).astype(np.uint8)[order],
        x.reshape(-1, len(SIGNALS))[order],
    )
    for minute_ms in sorted({minutes.minute_of(int(t)) for t in ts}):
        record = minutes.reduce([s for s in decoded if minutes.minute_of(s.ts_ms) == minute_ms])
        mine = table.rows_MC[table.minute_M == minute_ms // 60_000]
        np.testing.assert_array_equal(mine, minutes.rows(record))


def test_no_samples():
    table = reduce_samples(
        np.empty(0, int), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty((0, len(SIGNALS)))
    )
    assert len(table.rows_MC) == 0


def test_a_counter_steps_within_the_minute_only():
    x = np.full((5, len(SIGNALS)), np.nan)
    x[:, SIGNAL_NAMES.index("ecc_corrected_total")] = [3, 5, 1, 2, 9]
    ts = T0_MS + np.array([0, 10_000, 20_000, 30_000, 60_000])
    rows = reduce_samples(np.zeros(5, int), ts, np.zeros(5, np.uint8), x).rows_MC
    columns = [
        COLUMN_INDEX[f"ecc_corrected_total_{s}"] for s in ("first", "last", "increase", "count")
    ]
    assert rows[:, columns].tolist() == [[3, 2, 3, 4], [9, 9, 0, 1]]
