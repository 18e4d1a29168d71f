"""The rule tests below alerts/tests: promtool runs each, and each alert has its own."""

import re
import subprocess

import generate
import pytest
import yaml

from kvpressure.bundle import alerts, raw
from kvpressure.bundle.config import BundleConfig

TESTS = {path.stem: path for path in sorted((generate.ALERTS / "tests").glob("*.yml"))}


@pytest.mark.parametrize("name", TESTS)
def test_rules(name):
    """Silent just below and firing just above threshold and hold, with exact labels and annotations."""
    said = subprocess.run(["promtool", "test", "rules", str(TESTS[name])], check=False, capture_output=True, text=True)

    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_has_its_tests():
    """There is a file for each alert, one for the raw group and one for the records, and no others."""
    assert {alert.name for alert in alerts.alerts(BundleConfig())} | {"raw", "records"} == set(TESTS)


@pytest.mark.parametrize("alert", alerts.alerts(BundleConfig()), ids=lambda alert: alert.name)
def test_each_file_tests_its_own(alert):
    """
    A file says of its alert that it is silent, and what it says when it fires, with a duplicate series.

    Where the expression reads a counter it also says what a counter does that starts again.
    """
    text = TESTS[alert.name].read_text(encoding="utf-8")
    found = yaml.safe_load(text)["tests"]
    own = [check for test in found for check in test.get("alert_rule_test", []) if check["alertname"] == alert.name]

    assert [] in [check["exp_alerts"] for check in own]
    told = [each for check in own for each in check["exp_alerts"]]
    assert told
    for each in told:
        assert alert.severity == each["exp_labels"]["severity"]
        assert {"summary", "description", "runbook_url"} == set(each["exp_annotations"])
    assert "scrape" in text
    assert not re.search(r"increase\(|rate\(", alert.expr) or re.search(r"starts? again|restart", text)


def test_the_raw_group_is_tested_whole():
    """Each alert of the raw group is asked for by name."""
    text = TESTS["raw"].read_text(encoding="utf-8")

    assert all(alert.name in text for alert in raw.alerts(BundleConfig()))
