"""What deciding costs beside parsing the score it decides on: a ratio taken in one run.

    python benchmarks/decisions.py --devices 100000 --json

The peer is ``orjson.loads`` of the same scorings' ``rigcanary.risks`` value: the least that any
consumer of that topic pays a device.
"""

import argparse
import resource
import time
from typing import Any

import orjson

from contract.minute import MINUTE_MS
from stream.budget import Budget, BudgetGate
from stream.decide import Decider
from stream.gate import DeviceScore
from stream.policy import Policy
from stream.state import NodeState, pack

START_MS = 1_767_225_600_000
CARDS = 8


def measure(devices: int, minutes: int) -> dict[str, Any]:
    nodes = max(1, devices // CARDS)
    states = [NodeState("lab", f"rig{n}") for n in range(nodes)]
    made = Decider(Policy(), BudgetGate(Budget(), lambda _: devices), 0.5, "bench")
    names = [f"GPU-{c}" for c in range(CARDS)]
    decide_s = parse_s = 0.0
    decisions = 0
    for minute in range(minutes):
        for n, state in enumerate(states):
            risk = 0.9 if n % 100 == 0 else 0.1  # one card in a hundred asks to leave
            scores = [DeviceScore(c, 1.0, risk, risk, risk, True, 60.0) for c in names]
            at_ms = START_MS + minute * MINUTE_MS
            begun = time.perf_counter()
            value, found = made.on_scores(state, at_ms, scores, lambda _: [], dry_run=False)
            decide_s += time.perf_counter() - begun
            decisions += len(found)
            raw = orjson.dumps(value)
            begun = time.perf_counter()
            orjson.loads(raw)
            parse_s += time.perf_counter() - begun
    count = nodes * CARDS * minutes
    return {
        "devices": nodes * CARDS,
        "minutes": minutes,
        "decisions": decisions,
        "waiting": len(made.waiting),
        "decide_us_per_device": 1e6 * decide_s / count,
        "peer": "orjson.loads of the same risks",
        "peer_us_per_device": 1e6 * parse_s / count,
        "ratio": decide_s / parse_s,
        "state_bytes_per_device": sum(len(pack(s)) for s in states) / (nodes * CARDS),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--minutes", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.devices, options.minutes)
    if options.json:
        print(orjson.dumps(result).decode())
        return
    for key, value in result.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")


if __name__ == "__main__":
    main()
