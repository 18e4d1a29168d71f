"""Records and alerts as documents: plain Prometheus rule files, and the PrometheusRule object of the Operator."""

from collections.abc import Iterable
from typing import Any

from kvpressure.bundle import alerts, raw, records
from kvpressure.bundle.alert import Alert
from kvpressure.bundle.config import BundleConfig

RULES = "kvpressure.rules"
ALERTS = "kvpressure.alerts"
RAW_ALERTS = "kvpressure.raw.alerts"

_RAW_RUNBOOK = "raw"
"""One runbook for the whole raw group: it says what each of its alerts cannot see, and leads on to the others."""


def rule_file(config: BundleConfig) -> dict[str, Any]:
    """The document of the recording rules."""
    rules = [{"record": record.name, "expr": record.expr} for record in records.records(config)]
    return {"groups": [{"name": RULES, "rules": rules}]}


def alert_file(config: BundleConfig) -> dict[str, Any]:
    """The document of the alerts."""
    return {"groups": [_alerts(ALERTS, alerts.alerts(config), config)]}


def raw_file(config: BundleConfig) -> dict[str, Any]:
    """The document of the alerts on vLLM's own series."""
    return {"groups": [_alerts(RAW_ALERTS, raw.alerts(config), config, _RAW_RUNBOOK)]}


def prometheus_rule(config: BundleConfig) -> dict[str, Any]:
    """All groups as one object (monitoring.coreos.com/v1); the raw one only where it is enabled."""
    files = [rule_file(config), alert_file(config), *([raw_file(config)] if config.raw.enabled else [])]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(config),
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }


def metadata(config: BundleConfig) -> dict[str, Any]:
    """Name, namespace and labels of an object for the Prometheus operator."""
    own = config.kubernetes
    where = {"namespace": own.namespace} if own.namespace else {}
    return {"name": own.name} | where | {"labels": dict(pair.split("=", 1) for pair in own.labels)}


def _alerts(name: str, group: Iterable[Alert], config: BundleConfig, runbook: str = "") -> dict[str, Any]:
    return {"name": name, "rules": [_rule(alert, config, runbook or alert.name) for alert in group]}


def _rule(alert: Alert, config: BundleConfig, runbook: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.hold} if alert.hold else {}),
        **({"keep_firing_for": alert.keep} if alert.keep else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": config.runbooks.url.replace("{alert}", runbook),
        },
    }
