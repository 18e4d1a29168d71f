"""
The bundle as objects for Kubernetes: what finds the sidecars, the rules, the dashboards, and a lock for their port.

Objects lie where they belong: `monitoring` holds those for the namespace of Prometheus, once per cluster; `namespace`
those for each namespace with a vLLM in it; `servicemonitor` those that stand in for the PodMonitor there, for who has a
Prometheus that looks for ServiceMonitors alone. The sidecar itself is no part of a bundle: it stands beside these.
"""

from collections.abc import Iterable
from typing import Any

from kvpressure.bundle import routes, rules
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.promql import duration

PORT = 10938
"""Where the sidecar listens."""
PORT_NAME = "kvpressure"
"""The name of that port of its container."""
POD_LABELS = {"kvpressure": "sidecar"}
"""What every pod with a sidecar is labelled with."""

MONITORING = "monitoring"
"""The folder of what goes into Prometheus' namespace."""
NAMESPACE = "namespace"
"""The folder of what goes into the namespaces of vLLM."""
SERVICE_MONITOR = "servicemonitor"
"""The folder of what goes there as well where Prometheus never looks for a PodMonitor."""

_NAME_LABEL = "app.kubernetes.io/name"
_JOB = "kvpressure"  # what the alerts' own selector of `up` asks for by default
_HIGHEST_PORT = 65535
_MONITORING_CRDS = "monitoring.coreos.com/v1"


def documents(config: BundleConfig) -> dict[str, dict[str, Any]]:
    """Every object and kustomization, by its path below deploy/kubernetes/."""
    return {
        f"{MONITORING}/podmonitor.yaml": pod_monitor(config),
        f"{MONITORING}/prometheusrule.yaml": rules.prometheus_rule(config),
        f"{MONITORING}/kustomization.yaml": _kustomization(
            "podmonitor.yaml", "prometheusrule.yaml", "../../../dashboards", namespace=config.kubernetes.namespace
        ),
        f"{NAMESPACE}/alertmanagerconfig.yaml": routes.alertmanager_config(config),
        f"{NAMESPACE}/networkpolicy.yaml": network_policy(config),
        f"{NAMESPACE}/kustomization.yaml": _kustomization("alertmanagerconfig.yaml", "networkpolicy.yaml"),
        f"{SERVICE_MONITOR}/service.yaml": service(config),
        f"{SERVICE_MONITOR}/servicemonitor.yaml": service_monitor(config),
        f"{SERVICE_MONITOR}/kustomization.yaml": _kustomization("service.yaml", "servicemonitor.yaml"),
    }


def pod_monitor(config: BundleConfig) -> dict[str, Any]:
    """
    What makes a Prometheus of the operator scrape every sidecar of the cluster (monitoring.coreos.com/v1).

    The job label becomes ``monitoring/kvpressure``, which the alerts' own selector of `up` knows.
    """
    return {
        "apiVersion": _MONITORING_CRDS,
        "kind": "PodMonitor",
        "metadata": rules.metadata(config),
        "spec": {
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": POD_LABELS},
            "podMetricsEndpoints": [{"port": PORT_NAME, "interval": duration(config.kubernetes.scrape_interval)}],
        },
    }


def service(config: BundleConfig) -> dict[str, Any]:
    """
    A headless Service of all sidecars of a namespace, for nothing but a ServiceMonitor to find them by.

    A sidecar speaks while vLLM is not ready, and above all then, so it is listed then too. Its port goes by number:
    older clusters do not find the name of a port of an init container.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": config.kubernetes.name, "labels": {_NAME_LABEL: _JOB}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": POD_LABELS,
            "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT}],
        },
    }


def service_monitor(config: BundleConfig) -> dict[str, Any]:
    """
    The same as the PodMonitor by way of that Service, for its own namespace (monitoring.coreos.com/v1).

    The job label is taken from the Service's own label, so that it is ``kvpressure`` whatever the objects are called.
    """
    metadata = {key: value for key, value in rules.metadata(config).items() if key != "namespace"}
    return {
        "apiVersion": _MONITORING_CRDS,
        "kind": "ServiceMonitor",
        "metadata": metadata,
        "spec": {
            "jobLabel": _NAME_LABEL,
            "selector": {"matchLabels": {_NAME_LABEL: _JOB}},
            "endpoints": [{"port": PORT_NAME, "interval": duration(config.kubernetes.scrape_interval)}],
        },
    }


def network_policy(config: BundleConfig) -> dict[str, Any]:
    """
    A lock for the sidecar's port: only Prometheus' namespace gets in; every other port is open.

    A policy that selects a pod closes what it does not name, so all other ports are named: a pod without a policy keeps
    them open. Policies add up, though: where another one closes some of them, this one opens them again, and the rule
    for them has to be left out. Probes come from the node, which is let in. Without a namespace of Prometheus, the
    policy's own is taken for it.
    """
    name = config.kubernetes.namespace
    labels = {"kubernetes.io/metadata.name": name}
    prometheus = {"namespaceSelector": {"matchLabels": labels}} if name else {"podSelector": {}}
    ports = [("TCP", 1, PORT - 1), ("TCP", PORT + 1, _HIGHEST_PORT), ("UDP", 1, _HIGHEST_PORT)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": config.kubernetes.name},
        "spec": {
            "podSelector": {"matchLabels": POD_LABELS},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [prometheus], "ports": [{"protocol": "TCP", "port": PORT}]},
                {"ports": [{"protocol": name, "port": first, "endPort": last} for name, first, last in ports]},
            ],
        },
    }


def dashboards(config: BundleConfig, names: Iterable[str]) -> dict[str, Any]:
    """
    A kustomization that makes a ConfigMap of each dashboard, with the label that Grafana's sidecar looks for.

    Args:
        config: the bundle's.
        names: of the dashboards' files.
    """
    label = dict(pair.split("=", 1) for pair in config.kubernetes.dashboard_labels)
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "generatorOptions": {"disableNameSuffixHash": True, "labels": label},
        "configMapGenerator": [{"name": name.removesuffix(".json"), "files": [name]} for name in sorted(names)],
    }


def _kustomization(*resources: str, namespace: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": list(resources),
    }
