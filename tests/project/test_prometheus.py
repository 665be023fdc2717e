"""The shipped alert rules: each fires, stays quiet and ends, on metrics that really exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from exported_metrics import exported

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = (FOLDER / "rules.yml").read_text()
TESTS = (FOLDER / "rules_test.yml").read_text()
ALERTS = re.findall(r"- alert: (\w+)", RULES)


def check(program: str, *arguments: str) -> None:
    found = shutil.which(program, path="/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip(
            f"{program} is not installed (apt-get install prometheus prometheus-alertmanager)"
        )
    done = subprocess.run(
        [found, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_valid() -> None:
    check("promtool", "check", "config", "prometheus.yml")


def test_alertmanager_takes_its_file() -> None:
    check("amtool", "check-config", "alertmanager.yml")


def test_rules_do_what_their_tests_say() -> None:
    check("promtool", "test", "rules", "rules_test.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_seen_to_fire_and_to_stay_quiet_before_and_after(alert: str) -> None:
    quiet = re.findall(rf"eval_time: (\d+)m, alertname: {alert}}}", TESTS)
    fires = re.findall(rf"eval_time: (\d+)m\n\s+alertname: {alert}\n\s+exp_alerts:", TESTS)
    assert fires
    assert min(map(int, quiet)) < min(map(int, fires)) < max(map(int, quiet))


def test_each_alert_says_what_to_do() -> None:
    assert len(re.findall(r"^ +action: .", RULES, re.MULTILINE)) == len(ALERTS)
    assert len(re.findall(r"severity: (?:critical|warning)}", RULES)) == len(ALERTS)


def test_no_rule_asks_for_a_metric_that_nobody_exports() -> None:
    asked = set(re.findall(r"(?<![:\w])rigcanary_[a-z_]+", "\n".join(_expressions())))
    assert asked
    assert asked <= exported()


def _expressions() -> list[str]:
    """What follows each ``expr:``, also over several lines."""
    found = re.findall(r"expr: (?:>-\n((?: {10,}.*\n)+)|(.*))", RULES)
    return ["".join(parts) for parts in found]
