"""Names of the metrics that the processes export."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from runner.edge.metrics import Metrics as RunnerMetrics
from stream.edge.bridge_metrics import BridgeMetrics
from stream.edge.fleet_metrics import fleet_exposition
from stream.edge.metrics import WorkerMetrics
from stream.fleet_view import FleetView

ROOT = Path(__file__).parents[2]


def exported() -> set[str]:
    """Names of the metrics that the processes export, counters with ``_total``."""
    registries: list[CollectorRegistry] = [
        WorkerMetrics().registry,
        BridgeMetrics().registry,
        RunnerMetrics().registry,
    ]
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for registry in registries
        for family in registry.collect()
    }
    names |= set(re.findall(r"# TYPE (\w+)", fleet_exposition(FleetView()).decode()))
    agent = (ROOT / "agents" / "edge" / "metrics.py").read_text()
    names |= {f"{name}_total" for name in re.findall(r'"(rigcanary_agent_\w+)"', agent)}
    return names
