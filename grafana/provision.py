"""Writes Grafana's alert rules from Prometheus' own: ``python grafana/provision.py``.

One table of alerts for both: ``deploy/prometheus/rules.yml`` is where they are written and tested.
A site runs one of the two; with both everything is said twice.
"""

import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # no types without another package

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "deploy" / "prometheus" / "rules.yml"
TARGET: Final = ROOT / "grafana" / "provisioning" / "alerting" / "rules.yaml"
PROMETHEUS: Final = "rigcanary-prometheus"
FOLDER: Final = "rigcanary"
LOOK_BACK_SECONDS: Final = 600
HEAD: Final = "# Made by grafana/provision.py from deploy/prometheus/rules.yml; change it there.\n"


def _uid(alert: str) -> str:
    """``RigcanaryCardLost`` → ``rigcanary_card_lost``: letters and dashes only, 40 at most."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", alert).lower()[:40]


def _text(template: str) -> str:
    """Prometheus' templates in Grafana's words: there ``$value`` is a sentence."""
    template = re.sub(r"\{\{ \$value \|", "{{ $values.A.Value |", template)
    return template.replace("{{ $value }}", "{{ $values.A }}")


def rule(alert: dict[str, Any]) -> dict[str, Any]:
    """One rule: it fires for every series that the expression returns, whatever its value."""
    return {
        "uid": _uid(alert["alert"]),
        "title": alert["alert"],
        "condition": "B",
        "data": [
            {
                "refId": "A",
                "relativeTimeRange": {"from": LOOK_BACK_SECONDS, "to": 0},
                "datasourceUid": PROMETHEUS,
                "model": {"refId": "A", "expr": alert["expr"].strip(), "instant": True},
            },
            {
                "refId": "B",
                "relativeTimeRange": {"from": LOOK_BACK_SECONDS, "to": 0},
                "datasourceUid": "__expr__",
                "model": {"refId": "B", "type": "math", "expression": "is_number($A)"},
            },
        ],
        # An expression that compares returns nothing while all is well.
        "noDataState": "OK",
        "execErrState": "Error",
        "for": alert.get("for", "0s"),
        "labels": alert["labels"],
        "annotations": {name: _text(value) for name, value in alert["annotations"].items()},
    }


def rendered() -> str:
    """The provisioning file."""
    source = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    groups = []
    for group in source["groups"]:
        alerts = [rule(one) for one in group["rules"] if "alert" in one]
        if alerts:
            groups.append(
                {
                    "orgId": 1,
                    "name": group["name"],
                    "folder": FOLDER,
                    "interval": "60s",
                    "rules": alerts,
                }
            )
    value = {"apiVersion": 1, "groups": groups}
    return HEAD + str(yaml.safe_dump(value, sort_keys=False, width=110, allow_unicode=True))


def main() -> int:
    """Write the file."""
    TARGET.write_text(rendered(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
